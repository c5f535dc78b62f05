// Package api serves the OpenAI-compatible HTTP interface: chat completions,
// whole or as server-sent events, the list of models, and health.
//
// A request is read strictly (json.go), understood field by field (request.go),
// rendered and tokenized, and started once per choice. Each running choice turns
// tokens into text in three steps that hold back only what is not certain yet:
// whole characters (tokenizer.Stream), reasoning apart from content (reasoning),
// stop strings (stops). Streams and whole answers consume the same events, so
// they can never say different things.
//
// Prompts and answers never reach the log.
package api
