package api

import (
	"fmt"

	"github.com/strata-engine/strata/core/model"
	"github.com/strata-engine/strata/core/template"
	"github.com/strata-engine/strata/core/tokenizer"
)

// ReadText builds the tokenizer and the chat template that a model file
// describes. Errors wrap model.ErrInvalid.
func ReadText(file *model.File) (*tokenizer.Tokenizer, *template.Template, error) {
	m := file.Metadata
	cfg := tokenizer.Config{BOS: tokenizer.None, EOS: tokenizer.None, PAD: tokenizer.None}
	r := reader{metadata: m}
	cfg.Model = r.text("tokenizer.ggml.model", true)
	cfg.Pre = r.text("tokenizer.ggml.pre", false)
	cfg.Tokens = r.texts("tokenizer.ggml.tokens")
	cfg.Types = r.types("tokenizer.ggml.token_type")
	cfg.Merges = r.texts("tokenizer.ggml.merges")
	r.id("tokenizer.ggml.bos_token_id", &cfg.BOS)
	r.id("tokenizer.ggml.eos_token_id", &cfg.EOS)
	r.id("tokenizer.ggml.padding_token_id", &cfg.PAD)
	for _, key := range []string{"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"} {
		id := tokenizer.None
		if r.id(key, &id); id != tokenizer.None {
			cfg.Stops = append(cfg.Stops, id)
		}
	}
	if key := "tokenizer.ggml.add_bos_token"; m.Has(key) {
		add, err := m.Bool(key)
		r.keep(err)
		cfg.AddBOS = &add
	}
	source := r.text("tokenizer.chat_template", false)
	if r.err != nil {
		return nil, nil, fmt.Errorf("read tokenizer: %w", r.err)
	}
	t, err := tokenizer.New(cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: read tokenizer: %w", model.ErrInvalid, err)
	}
	if rows := file.Spec.Hyper.Vocab; t.Size() > rows {
		return nil, nil, fmt.Errorf("%w: read tokenizer: it has %d tokens but the model's embedding has %d rows", model.ErrInvalid, t.Size(), rows)
	}
	chat, err := template.New(template.Config{Source: source, Controls: t.ControlTexts(), BOS: t.Text(t.BOS()), EOS: t.Text(t.EOS())})
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", model.ErrInvalid, err)
	}
	return t, chat, nil
}

// reader reads metadata and keeps the first error.
type reader struct {
	metadata *model.Metadata
	err      error
}

func (r *reader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) text(key string, required bool) string {
	if !required && !r.metadata.Has(key) {
		return ""
	}
	s, err := r.metadata.String(key)
	r.keep(err)
	return s
}

func (r *reader) texts(key string) []string {
	s, err := r.metadata.Strings(key)
	r.keep(err)
	return s
}

// types are the tokens' types; a file without any has normal tokens only. A value
// beyond 32 bits is none that any reader knows.
func (r *reader) types(key string) []int32 {
	if !r.metadata.Has(key) {
		return nil
	}
	list, err := r.metadata.Ints(key)
	r.keep(err)
	out := make([]int32, len(list))
	for i, v := range list {
		out[i] = tokenizer.TypeNormal
		if v == int64(int32(v)) {
			out[i] = int32(v)
		}
	}
	return out
}

// id reads a token's id where the file names one. What does not fit an int is
// no id, and the tokenizer refuses ids outside its vocabulary.
func (r *reader) id(key string, to *int) {
	if !r.metadata.Has(key) {
		return
	}
	v, err := r.metadata.Int(key)
	r.keep(err)
	if v < 0 || v > 1<<31-1 {
		v = 1<<31 - 1
	}
	*to = int(v)
}
