package tokenizer

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/strata-engine/strata/testdata"
)

// fileConfig reads the tokenizer of a model file of the repository. It trusts the
// file, which the tests of the GGUF reader need not.
func fileConfig(t testing.TB, model string) Config {
	t.Helper()
	data, err := os.ReadFile(testdata.Model(t, model))
	if err != nil {
		t.Fatal(err)
	}
	u32 := func() uint32 { v := binary.LittleEndian.Uint32(data); data = data[4:]; return v }
	u64 := func() uint64 { v := binary.LittleEndian.Uint64(data); data = data[8:]; return v }
	str := func() string { n := u64(); s := string(data[:n]); data = data[n:]; return s }
	sizes := map[uint32]int{0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
	var value func(typ uint32) any
	value = func(typ uint32) any {
		switch typ {
		case 8:
			return str()
		case 9:
			elem, n := u32(), u64()
			list := make([]any, n)
			for i := range list {
				list[i] = value(elem)
			}
			return list
		case 4, 5:
			return u32()
		}
		n := sizes[typ]
		raw := data[:n]
		data = data[n:]
		return raw[0] != 0
	}
	u64() // magic and version
	u64() // number of tensors
	meta := map[string]any{}
	for n := u64(); n > 0; n-- {
		key := str()
		meta[key] = value(u32())
	}
	cfg := Config{BOS: None, EOS: None, PAD: None}
	cfg.Model, _ = meta["tokenizer.ggml.model"].(string)
	cfg.Pre, _ = meta["tokenizer.ggml.pre"].(string)
	for _, v := range meta["tokenizer.ggml.tokens"].([]any) {
		cfg.Tokens = append(cfg.Tokens, v.(string))
	}
	for _, v := range meta["tokenizer.ggml.token_type"].([]any) {
		cfg.Types = append(cfg.Types, int32(v.(uint32)))
	}
	for _, v := range meta["tokenizer.ggml.merges"].([]any) {
		cfg.Merges = append(cfg.Merges, v.(string))
	}
	for key, to := range map[string]*int{"bos": &cfg.BOS, "eos": &cfg.EOS, "padding": &cfg.PAD} {
		if id, ok := meta["tokenizer.ggml."+key+"_token_id"].(uint32); ok {
			*to = int(id)
		}
	}
	if add, ok := meta["tokenizer.ggml.add_bos_token"].(bool); ok {
		cfg.AddBOS = &add
	}
	return cfg
}

// pebble is the tokenizer of the default model.
func pebble(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := New(fileConfig(t, "pebble-q4-mtp.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}
