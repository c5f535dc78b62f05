// Package tokenizer turns text into token ids and back: byte-level BPE over the
// vocabulary of a GGUF file.
//
// # Trust
//
// A prompt is a list of parts, each trusted (written by the chat template) or
// not (taken from a request). Control tokens such as <|im_end|> end turns and
// name roles, so they are recognised only where every byte of their text is
// trusted; elsewhere their text is ordinary text. What the tokens are depends
// only on the joined text and on which bytes are trusted: cutting a text into
// parts differently changes nothing.
//
// User-defined tokens such as <think> or <tool_call> are recognised everywhere,
// in requests too, as the reference implementations do: they mark up content
// and cannot end or forge a turn. A token of that type that looks like a control
// token (<|...|>, in ASCII or fullwidth bars) counts as one all the same, because
// converters have mislabelled role markers.
//
// # Agreement
//
// Of several added tokens that match at a position the longest wins, positions
// from left to right (Hugging Face's rule). Text is not normalised: NFC, which
// some models' Hugging Face tokenizers apply, is the caller's decision. Ill-formed
// UTF-8 is encoded byte by byte, so that encoding and decoding give back the same
// bytes whatever they are.
package tokenizer
