package api

import (
	"net/http"
	"strings"
)

// corsMaxAge is for how long, in seconds, a browser may remember what it may send.
const corsMaxAge = "600"

// cors tells browsers that pages of the listed origins may read answers, errors
// included, and what they may send (Fetch standard, "HTTP extensions").
type cors struct {
	origins map[string]bool
	next    http.Handler
}

func newCORS(origins []string, next http.Handler) *cors {
	c := &cors{origins: map[string]bool{}, next: next}
	for _, o := range origins {
		c.origins[strings.ToLower(o)] = true
	}
	return c
}

// ServeHTTP adds the headers to what the next handler answers.
func (c *cors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if len(c.origins) > 0 {
		w.Header().Add("Vary", "Origin")
	}
	if origin == "" || !c.origins[strings.ToLower(origin)] {
		c.next.ServeHTTP(w, r)
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "Retry-After")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
		h.Set("Access-Control-Allow-Headers", allowedHeaders(r.Header.Get("Access-Control-Request-Headers")))
		h.Set("Access-Control-Max-Age", corsMaxAge)
		if r.Header.Get("Access-Control-Request-Private-Network") == "true" {
			h.Set("Access-Control-Allow-Private-Network", "true")
		}
	}
	c.next.ServeHTTP(w, r)
}

// allowedHeaders are those that requests need and those that a page asks for:
// clients send their name and version in headers of their own, which harm nobody.
func allowedHeaders(wanted string) string {
	out := []string{"authorization", "content-type", "x-api-key"}
	for name := range strings.SplitSeq(strings.ToLower(wanted), ",") {
		name = strings.TrimSpace(name)
		if headerName(name) && len(out) < 64 && name != out[0] && name != out[1] && name != out[2] {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}

// headerName reports whether s is a token of letters, digits and a few signs.
func headerName(s string) bool {
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' {
			continue
		}
		return false
	}
	return s != ""
}
