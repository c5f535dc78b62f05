package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// Token types of tokenizer.ggml.token_type (GGUF specification). Types not named
// here count as normal.
const (
	TypeNormal      int32 = 1
	TypeUnknown     int32 = 2
	TypeControl     int32 = 3
	TypeUserDefined int32 = 4
	TypeUnused      int32 = 5
)

// None is the id of a token that the file does not name.
const None = -1

// Config is a tokenizer as a GGUF file describes it.
type Config struct {
	// Model is tokenizer.ggml.model; only "gpt2" (byte-level BPE) is known.
	Model string
	// Pre is tokenizer.ggml.pre. Override, where not empty, is used in its
	// place: the way out for a file whose name for a known rule is unknown.
	Pre, Override string
	// Tokens is the vocabulary; a token's id is its index.
	Tokens []string
	// Types has one entry per token. Empty means that all are normal.
	Types []int32
	// Merges are "left right", best rank first.
	Merges []string
	// BOS, EOS and PAD are ids or None.
	BOS, EOS, PAD int
	// Stops are more ids that end generation (eot_token_id, eom_token_id).
	Stops []int
	// AddBOS is add_bos_token; nil where the file does not say, which then
	// depends on the pre-tokenizer.
	AddBOS *bool
}

// Tokenizer encodes and decodes. It is immutable and safe for concurrent use.
type Tokenizer struct {
	tokens  []string
	bytes   [][]byte // what each token stands for; nil for unused ones
	kinds   []kind
	byText  map[string]int32 // every token that can be named, by its spelling
	pre     preTokenizer
	merges  *mergeTable
	pieces  map[string]int32 // normal tokens by their bytes; only where pre.wholePieces
	byteIDs [256]int32
	added   *trie
	bos     int32
	eos     int32
	pad     int32
	addBOS  bool
	stops   []int32
	scratch chan *encoder
}

// kind is what a token is to the encoder and decoder.
type kind uint8

const (
	kindNormal kind = iota
	kindControl
	kindUserDefined
	kindUnused
)

// endOfGeneration names the control tokens that end an answer in the known model
// families, beside the file's EOS: files name one id only, and chat models end
// turns with another. <|end|> ends a message and not the answer in vocabularies
// that have <|return|>.
var endOfGeneration = []string{
	"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>", "<|call|>",
	"<|eot|>", "<|eom|>", "<|end_of_turn|>", "<end_of_turn>", "<|endofturn|>", "<|EOT|>", "<EOT>", "</s>", "<eos>",
	"<｜end▁of▁sentence｜>",
}

// New builds a tokenizer and checks the whole configuration: lengths, ids, types,
// merges, and that every byte has a token.
func New(cfg Config) (*Tokenizer, error) {
	if cfg.Model != "gpt2" {
		return nil, fmt.Errorf("tokenizer: model %q is not supported; known is gpt2 (byte-level BPE)", cfg.Model)
	}
	name := cfg.Pre
	if cfg.Override != "" {
		name = cfg.Override
	}
	pre, err := findPreTokenizer(name)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	n := len(cfg.Tokens)
	if n == 0 || n > math.MaxInt32 {
		return nil, fmt.Errorf("tokenizer: %d tokens; the vocabulary must have 1 to 2^31-1", n)
	}
	if len(cfg.Types) != 0 && len(cfg.Types) != n {
		return nil, fmt.Errorf("tokenizer: %d token types for %d tokens; the file is inconsistent", len(cfg.Types), n)
	}
	t := &Tokenizer{
		tokens:  cfg.Tokens,
		bytes:   make([][]byte, n),
		kinds:   make([]kind, n),
		byText:  make(map[string]int32, n),
		pre:     pre,
		addBOS:  pre.addBOS,
		scratch: make(chan *encoder, maxIdleEncoders),
	}
	if cfg.AddBOS != nil {
		t.addBOS = *cfg.AddBOS
	}
	for _, f := range []struct {
		name string
		id   int
		to   *int32
	}{{"bos", cfg.BOS, &t.bos}, {"eos", cfg.EOS, &t.eos}, {"padding", cfg.PAD, &t.pad}} {
		if f.id < None || f.id >= n {
			return nil, fmt.Errorf("tokenizer: %s token id %d is outside the vocabulary of %d tokens", f.name, f.id, n)
		}
		*f.to = int32(f.id)
	}
	if err := t.readVocabulary(cfg); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if err := t.readMerges(cfg.Merges); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if err := t.collectStops(cfg.Stops); err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if t.addBOS && t.bos < 0 {
		return nil, errors.New("tokenizer: a beginning-of-sequence token shall be added but the file names none")
	}
	return t, nil
}

// readVocabulary fills what is known per token.
func (t *Tokenizer) readVocabulary(cfg Config) error {
	for i := range t.byteIDs {
		t.byteIDs[i] = None
	}
	if t.pre.wholePieces {
		t.pieces = make(map[string]int32, len(cfg.Tokens))
	}
	ends := map[int]bool{cfg.BOS: true, cfg.EOS: true} // these are control tokens whatever type the file gives them
	for _, id := range cfg.Stops {
		ends[id] = true
	}
	t.added = newTrie()
	for i, text := range cfg.Tokens {
		id := int32(i)
		typ := TypeNormal
		if len(cfg.Types) > 0 {
			typ = cfg.Types[i]
		}
		switch {
		case typ == TypeUnused:
			t.kinds[i] = kindUnused
			continue // rows that pad the vocabulary are never produced from text
		case typ == TypeControl, typ == TypeUnknown, typ != TypeNormal && ends[i], (typ == TypeUserDefined || ends[i]) && looksLikeControl(text):
			t.kinds[i] = kindControl
		case typ == TypeUserDefined:
			t.kinds[i] = kindUserDefined
		}
		if other, ok := t.byText[text]; ok {
			return fmt.Errorf("tokens %d and %d are both %q; the vocabulary must be unique", other, i, text)
		}
		t.byText[text] = id
		if t.kinds[i] != kindNormal {
			t.bytes[i] = []byte(text)
			if text != "" {
				t.added.add(text, id)
			}
			continue
		}
		var spelled bool
		if t.bytes[i], spelled = spelledBytes(text); !spelled {
			continue
		}
		if len(t.bytes[i]) == 1 {
			t.byteIDs[t.bytes[i][0]] = id
		}
		if t.pieces != nil {
			t.pieces[string(t.bytes[i])] = id
		}
	}
	for b, id := range t.byteIDs {
		if id < 0 {
			return fmt.Errorf("no token for the byte 0x%02X (%q); a byte-level vocabulary has one for each", b, string(byteRunes[b]))
		}
	}
	return nil
}

// looksLikeControl reports whether a token is written like a control token.
func looksLikeControl(text string) bool {
	return strings.HasPrefix(text, "<|") && strings.HasSuffix(text, "|>") ||
		strings.HasPrefix(text, "<｜") && strings.HasSuffix(text, "｜>")
}

// readMerges builds the merge table.
func (t *Tokenizer) readMerges(merges []string) error {
	if len(merges) > math.MaxInt32-1 {
		return fmt.Errorf("%d merges are too many", len(merges))
	}
	t.merges = newMergeTable(len(merges))
	for rank, m := range merges {
		left, right, ok := strings.Cut(m, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return fmt.Errorf("merge %d is %q; it must be two tokens with one space between", rank, m)
		}
		var ids [3]int32
		for i, s := range []string{left, right, left + right} {
			id, ok := t.byText[s]
			if !ok || t.kinds[id] != kindNormal {
				return fmt.Errorf("merge %d (%q) names %q, which is not a normal token of the vocabulary", rank, m, s)
			}
			ids[i] = id
		}
		t.merges.add(ids[0], ids[1], int32(rank), ids[2])
	}
	return nil
}

// collectStops finds the ids that end generation.
func (t *Tokenizer) collectStops(more []int) error {
	add := func(id int32) {
		for _, s := range t.stops {
			if s == id {
				return
			}
		}
		t.stops = append(t.stops, id)
	}
	if t.eos >= 0 {
		add(t.eos)
	}
	for _, id := range more {
		if id < 0 || id >= len(t.tokens) {
			return fmt.Errorf("stop token id %d is outside the vocabulary of %d tokens", id, len(t.tokens))
		}
		add(int32(id))
	}
	_, harmony := t.ControlID("<|return|>")
	for _, text := range endOfGeneration {
		if id, ok := t.ControlID(text); ok && !(text == "<|end|>" && harmony) {
			add(id)
		}
	}
	return nil
}

// Size is the number of tokens, padding included.
func (t *Tokenizer) Size() int { return len(t.tokens) }

// BOS, EOS and PAD return the ids that the file names, or None.
func (t *Tokenizer) BOS() int32 { return t.bos }

// EOS returns the end-of-sequence id, or None. Generation ends at any of Stops.
func (t *Tokenizer) EOS() int32 { return t.eos }

// PAD returns the padding id, or None.
func (t *Tokenizer) PAD() int32 { return t.pad }

// Stops returns the ids that end generation: the file's EOS, EOT and EOM, and the
// control tokens that end an answer in the known model families. The slice is the
// caller's.
func (t *Tokenizer) Stops() []int32 { return append([]int32(nil), t.stops...) }

// ID returns the token with the given text, spelled as in the vocabulary.
func (t *Tokenizer) ID(text string) (int32, bool) {
	id, ok := t.byText[text]
	return id, ok
}

// ControlID returns the control token with the given text.
func (t *Tokenizer) ControlID(text string) (int32, bool) {
	id, ok := t.byText[text]
	if !ok || t.kinds[id] != kindControl {
		return None, false
	}
	return id, true
}

// IsControl reports whether id is a control token. Ids outside the vocabulary are
// none.
func (t *Tokenizer) IsControl(id int32) bool {
	return t.known(id) && t.kinds[id] == kindControl
}

// ControlTexts returns the text of every control token, in order of id: what a
// request must not be able to produce.
func (t *Tokenizer) ControlTexts() []string {
	var texts []string
	for id, k := range t.kinds {
		if k == kindControl {
			texts = append(texts, t.tokens[id])
		}
	}
	return texts
}

// Text returns the token as the vocabulary spells it, or "" outside of it.
func (t *Tokenizer) Text(id int32) string {
	if !t.known(id) {
		return ""
	}
	return t.tokens[id]
}

// TokenBytes returns the bytes that a token stands for, which need not be whole
// characters: a control token's are its text. Nil for unused tokens and ids
// outside the vocabulary. The slice is the caller's.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	return append([]byte(nil), t.tokenBytes(id)...)
}

func (t *Tokenizer) tokenBytes(id int32) []byte {
	if !t.known(id) {
		return nil
	}
	return t.bytes[id]
}

func (t *Tokenizer) known(id int32) bool { return id >= 0 && int(id) < len(t.tokens) }

// Decode returns the bytes of all tokens, control tokens as their text. The
// string need not be UTF-8; Stream makes it so.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		b.Write(t.tokenBytes(id))
	}
	return b.String()
}
