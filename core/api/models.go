package api

import "net/http"

type modelObject struct {
	ID      string    `json:"id"`
	Object  string    `json:"object"`
	Created int64     `json:"created"`
	OwnedBy string    `json:"owned_by"`
	Meta    modelMeta `json:"meta"`
}

// modelMeta is what llama.cpp's server adds to the object, under its names.
type modelMeta struct {
	Context        int    `json:"n_ctx"`
	TrainedContext int    `json:"n_ctx_train"`
	Vocabulary     int    `json:"n_vocab"`
	Width          int    `json:"n_embd"`
	Architecture   string `json:"architecture"`
}

func objectOf(m *Model) modelObject {
	return modelObject{
		ID: m.ID, Object: "model", Created: m.Loaded.Unix(), OwnedBy: "strata",
		Meta: modelMeta{
			Context:        m.Context,
			TrainedContext: m.Spec.Hyper.Context,
			Vocabulary:     m.Spec.Hyper.Vocab,
			Width:          m.Spec.Hyper.Width,
			Architecture:   m.Spec.Architecture,
		},
	}
}

// listModels lists what can answer now: nothing while the model is loaded.
func (s *Server) listModels(w http.ResponseWriter, _ *http.Request) {
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", []modelObject{}}
	if m := s.current(); m != nil {
		list.Data = append(list.Data, objectOf(m))
	}
	writeJSON(w, http.StatusOK, list)
}

func (s *Server) showModel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if m := s.current(); m != nil && m.ID == id {
		writeJSON(w, http.StatusOK, objectOf(m))
		return
	}
	e := invalidRequest(http.StatusNotFound, "model_not_found", "The model '%s' does not exist.", id)
	e.body.Param = optional("model")
	e.write(w)
}
