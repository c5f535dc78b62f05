package api

import (
	"net/http"
	"unicode/utf8"

	"github.com/strata-engine/strata/core/tokenizer"
)

// The routes below have the shapes of llama.cpp's server.

// tokenize answers POST /tokenize: the tokens of a text.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	p, m, e := s.simple(w, r)
	if e != nil {
		e.write(w)
		return
	}
	if p.get("content") == nil {
		p.fail(refuse("content", "missing_required_parameter", "Missing required parameter: 'content'."))
	}
	// As in a request's text, nothing is a control token unless that is asked for.
	part := tokenizer.Part{Text: p.text("content", ""), Trusted: p.boolean("parse_special", false)}
	special, pieces := p.boolean("add_special", false), p.boolean("with_pieces", false)
	if p.err != nil {
		p.err.write(w)
		return
	}
	encode := m.Tokenizer.Encode
	if special {
		encode = m.Tokenizer.EncodePrompt
	}
	tokens := []any{}
	for _, id := range encode(part) {
		if !pieces {
			tokens = append(tokens, id)
			continue
		}
		text := m.Tokenizer.Decode([]int32{id})
		var piece any = text
		if !utf8.ValidString(text) {
			piece = byteSeq(text) // a part of a character
		}
		tokens = append(tokens, tokenPiece{id, piece})
	}
	writeJSON(w, http.StatusOK, struct {
		Tokens []any `json:"tokens"`
	}{tokens})
}

type tokenPiece struct {
	ID    int32 `json:"id"`
	Piece any   `json:"piece"`
}

// detokenize answers POST /detokenize: the text of tokens.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	p, m, e := s.simple(w, r)
	if e != nil {
		e.write(w)
		return
	}
	n := p.want("tokens", kindArray)
	if n == nil {
		p.fail(refuse("tokens", "missing_required_parameter", "Missing required parameter: 'tokens'."))
		p.err.write(w)
		return
	}
	ids := parseIDs(p, "tokens", n)
	if p.err != nil {
		p.err.write(w)
		return
	}
	if err := m.known("tokens", ids); err != nil {
		fromEngine(err).write(w)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Content string `json:"content"`
	}{m.text(ids)})
}

// simple reads a request that is answered at once, and the model it needs.
func (s *Server) simple(w http.ResponseWriter, r *http.Request) (*params, *Model, *apiError) {
	body, err := s.readBody(w, r)
	if err != nil {
		return nil, nil, fromEngine(err)
	}
	p, e := parseBody(body)
	if e != nil {
		return nil, nil, e
	}
	m, err := s.wait(r.Context(), nil)
	if err != nil {
		return nil, nil, fromEngine(err)
	}
	return p, m, nil
}
