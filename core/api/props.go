package api

import (
	"net/http"
	"path/filepath"

	"github.com/strata-engine/strata/core/sampler"
)

// serverProps is what llama.cpp's server says of itself, under its names, as far
// as Strata has the same.
type serverProps struct {
	DefaultGenerationSettings generationSettings `json:"default_generation_settings"`
	// TotalSlots is how many sequences are computed at once.
	TotalSlots int    `json:"total_slots"`
	ModelAlias string `json:"model_alias"`
	// ModelPath is the file's name without its folder, which is nobody's business.
	ModelPath    string     `json:"model_path"`
	Modalities   modalities `json:"modalities"`
	ChatTemplate string     `json:"chat_template"`
	BOSToken     string     `json:"bos_token"`
	EOSToken     string     `json:"eos_token"`
	BuildInfo    string     `json:"build_info"`
}

type modalities struct {
	Vision bool `json:"vision"`
	Audio  bool `json:"audio"`
}

type generationSettings struct {
	Context int           `json:"n_ctx"`
	Params  defaultParams `json:"params"`
}

// defaultParams are what holds where a request says nothing.
type defaultParams struct {
	NPredict         int     `json:"n_predict"` // -1: the rest of the context
	Seed             int     `json:"seed"`      // -1: another one each time
	Temperature      float64 `json:"temperature"`
	TopK             int     `json:"top_k"`
	TopP             float64 `json:"top_p"`
	MinP             float64 `json:"min_p"`
	TypicalP         float64 `json:"typical_p"`
	RepeatLastN      int     `json:"repeat_last_n"`
	RepeatPenalty    float64 `json:"repeat_penalty"`
	PresencePenalty  float64 `json:"presence_penalty"`
	FrequencyPenalty float64 `json:"frequency_penalty"`
}

// props answers GET /props.
func (s *Server) props(w http.ResponseWriter, r *http.Request) {
	m, err := s.wait(r.Context(), nil)
	if err != nil {
		fromEngine(err).write(w)
		return
	}
	var o options
	parseSampling(&params{object: &node{kind: kindObject}}, &o)
	d := o.sampling
	out := serverProps{
		DefaultGenerationSettings: generationSettings{Context: m.Context, Params: defaultParams{
			NPredict: -1, Seed: -1, Temperature: d.Temperature, TopK: d.TopK, TopP: d.TopP, MinP: d.MinP, TypicalP: d.TypicalP,
			RepeatLastN: sampler.DefaultPenaltyWindow, RepeatPenalty: d.RepetitionPenalty,
			PresencePenalty: d.PresencePenalty, FrequencyPenalty: d.FrequencyPenalty,
		}},
		TotalSlots: m.Sequences, ModelAlias: m.ID,
		ChatTemplate: m.Template.Source(),
		BOSToken:     m.Tokenizer.Text(m.Tokenizer.BOS()), EOSToken: m.Tokenizer.Text(m.Tokenizer.EOS()),
		BuildInfo: "strata " + s.version,
	}
	if len(m.Spec.Shards) > 0 {
		out.ModelPath = filepath.Base(m.Spec.Shards[0].Path)
	}
	writeJSON(w, http.StatusOK, out)
}
