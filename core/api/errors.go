package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/strata-engine/strata/core"
	"github.com/strata-engine/strata/core/engine"
)

// Error types, as in the OpenAI API.
const (
	typeInvalid        = "invalid_request_error"
	typeAuthentication = "authentication_error"
	typeServer         = "server_error"
)

// apiError is an error as a client reads it.
type apiError struct {
	status     int
	retryAfter int // seconds; 0: no header
	body       errorBody
}

type errorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

// errorObject is the body of an error's response, and its event in a stream.
type errorObject struct {
	Error errorBody `json:"error"`
}

func (e *apiError) Error() string { return e.body.Message }

// optional is nil for an empty string: the API writes null.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// refuse makes a 400 about a parameter.
func refuse(param, code, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, body: errorBody{
		Message: fmt.Sprintf(format, args...), Type: typeInvalid, Param: optional(param), Code: optional(code),
	}}
}

// invalidRequest makes an error that blames the request, with its own status.
func invalidRequest(status int, code, format string, args ...any) *apiError {
	e := refuse("", code, format, args...)
	e.status = status
	return e
}

// unavailable makes an error that blames the server; the client may try again.
func unavailable(status, retryAfter int, code, message string) *apiError {
	return &apiError{status: status, retryAfter: retryAfter, body: errorBody{
		Message: message, Type: typeServer, Code: optional(code),
	}}
}

// tooLong says that a prompt does not fit the context; param holds the prompt.
func tooLong(param string, e *engine.ContextError) *apiError {
	return refuse(param, "context_length_exceeded",
		"This model's maximum context length is %d tokens, but your %s resulted in %d tokens. Please reduce the length of the %[2]s.", e.Context, param, e.Prompt)
}

// fromEngine turns an error of the engine into one for clients. Where an
// automatic client decides by the text whether to try again, the words "server
// error" say so.
func fromEngine(err error) *apiError {
	var known *apiError
	var nonFinite *engine.NonFiniteError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &nonFinite):
		return unavailable(http.StatusInternalServerError, 0, "non_finite_logits", nonFinite.Error())
	case errors.Is(err, engine.ErrBusy):
		return unavailable(http.StatusServiceUnavailable, 1, "queue_full", "server error: the queue is full, try again later")
	case errors.Is(err, engine.ErrClosed), errors.Is(err, context.Canceled):
		return unavailable(http.StatusServiceUnavailable, 5, "shutting_down", "server error: the server is shutting down")
	case errors.Is(err, core.ErrBackendGone), errors.Is(err, core.ErrStepDeadline):
		return unavailable(http.StatusServiceUnavailable, 5, "backend_gone", "server error: "+err.Error())
	}
	return unavailable(http.StatusInternalServerError, 0, "internal_error", "server error: "+err.Error())
}

// write sends the error as a response of its own.
func (e *apiError) write(w http.ResponseWriter) {
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	writeJSON(w, e.status, errorObject{e.body})
}
