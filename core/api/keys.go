package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// keys are those of which a request must carry one. They are kept as hashes of
// equal length, so that comparing takes the same time whatever a request carries.
type keys [][sha256.Size]byte

func newKeys(list []string) keys {
	var k keys
	for _, key := range list {
		k = append(k, sha256.Sum256([]byte(key)))
	}
	return k
}

// allow reports whether a request carries one of the keys.
func (k keys) allow(r *http.Request) bool {
	if len(k) == 0 {
		return true
	}
	found := 0
	for _, key := range carried(r) {
		hash := sha256.Sum256([]byte(key))
		for i := range k { // all of them: the time says nothing about which
			found |= subtle.ConstantTimeCompare(hash[:], k[i][:])
		}
	}
	return found == 1
}

// carried are the keys that a request carries, at most two.
func carried(r *http.Request) []string {
	var out []string
	scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if key = strings.TrimSpace(key); ok && strings.EqualFold(scheme, "Bearer") && key != "" {
		out = append(out, key)
	}
	if key := strings.TrimSpace(r.Header.Get("X-Api-Key")); key != "" {
		out = append(out, key)
	}
	return out
}

// openPath reports whether a path needs no key: who watches whether the server
// lives has none.
func openPath(path string) bool {
	return path == "/health" || path == "/health/live" || path == "/health/ready"
}

// protect asks for a key.
func (s *Server) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodOptions || openPath(r.URL.Path) || s.keys.allow(r) {
			next.ServeHTTP(w, r)
			return
		}
		e := invalidRequest(http.StatusUnauthorized, "invalid_api_key", "Incorrect API key provided.")
		if len(carried(r)) == 0 {
			e.body.Message = "You didn't provide an API key. Send one as a header: Authorization: Bearer KEY, or x-api-key: KEY."
		}
		e.body.Type = typeAuthentication
		w.Header().Set("WWW-Authenticate", "Bearer")
		e.write(w)
	})
}
