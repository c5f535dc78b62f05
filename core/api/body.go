package api

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// readBody reads a request's body within its time and size.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (string, error) {
	var body strings.Builder
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, int64(s.cfg.MaxBody), 1<<20)))
	}
	_, err := io.Copy(&body, r.Body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return "", invalidRequest(http.StatusRequestEntityTooLarge, "request_too_large", "The body of your request is larger than %v.", s.cfg.MaxBody)
	case err != nil:
		w.Header().Set("Connection", "close") // and do not wait for the rest
		return "", invalidRequest(http.StatusRequestTimeout, "request_incomplete", "The body of your request did not arrive whole within %v.", s.cfg.BodyTimeout)
	}
	// From here on the connection is only watched for the client's leaving.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body.String(), nil
}
