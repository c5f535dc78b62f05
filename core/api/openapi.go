package api

import (
	_ "embed"
	"net/http"
	"strconv"
)

// document describes every route, its requests and its answers, as OpenAPI 3.1.
//
//go:embed openapi.json
var document []byte

// openapi answers GET /openapi.json.
func (s *Server) openapi(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(document)))
	_, _ = w.Write(document)
}
