// Package template renders conversations with the chat template of a model file.
//
// Templates are Jinja, rendered with Hugging Face's settings (trim_blocks,
// lstrip_blocks, Python's json.dumps for tojson) by github.com/ardanlabs/jinja.
// The source is rewritten before it is compiled (see rewrite.go): whitespace
// control is resolved exactly as Jinja's lexer does, literals get Python's
// escapes, and every loop iteration and macro call is counted, so that a template
// can neither run for ever nor recurse without end. What stays unbounded is the
// memory that a loop within the limits can build up from strings: templates come
// with the model and are trusted that far.
//
// # Request text and control tokens
//
// The result is a list of parts for the tokenizer, which recognises control
// tokens only in trusted ones. To know where a character of the output came from,
// one or a few critical characters are chosen such that every control token
// contains one (for <|im_end|> and its like: the bar). In every string that comes
// from a request the critical characters are replaced by private-use characters;
// the template, which treats those like any other character, is rendered with
// them, and they are changed back, each in an untrusted part of its own. So a
// control token whose critical character came from a request is never
// recognised, whatever the template did to the text: trim it, split it, join it,
// write it as JSON. Request text without critical characters needs none of this
// and costs nothing.
//
// Where a template writes the pieces of a token around a string of the request
// ('<|' + name + '|>'), the string could complete it without a critical
// character; such strings are found when the template is compiled and marked too.
// Roles that every template knows are the server's words and not marked.
//
// The marked output, changed back, must equal the output without marks. Where a
// template inspects a critical character, so that they differ, the unmarked
// output counts, and every critical character that occurs in any request string
// is untrusted wherever it stands (Prompt.Degraded): safe, if the model then sees
// some control tokens as text.
package template
