// Package api serves the HTTP interface: the OpenAI API's chat and text
// completions, whole or as server-sent events, its list of models, and llama.cpp's
// routes for tokens and properties; health and metrics; and a description of all
// of it (openapi.json).
//
// A request is read strictly (json.go), understood field by field (request.go),
// rendered and tokenized, and started once per choice (run.go). Each running choice turns
// tokens into text in three steps that hold back only what is not certain yet:
// whole characters (tokenizer.Stream), reasoning apart from content (reasoning),
// stop strings (stops). Streams and whole answers consume the same events, so
// they can never say different things. What they look like is the business of the
// kind of request (chat.go, completions.go).
//
// Before any of that a request passes, from the outside in, limits of size and
// time (Server.bounded), the headers for pages of other origins (cors), and a check
// of its key (Server.protect) or, where there are none, of where it comes from
// (guard).
//
// Prompts and answers never reach the log.
package api
