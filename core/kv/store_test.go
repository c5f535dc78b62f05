package kv

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/strata-engine/strata/core"
)

// TestStoreModel drives a store with random operations beside a plain model.
func TestStoreModel(t *testing.T) {
	type model struct {
		tokens           []int32
		prompt, at, room int
	}
	rapid.Check(t, func(t *rapid.T) {
		const budget, most = 100, 4
		s := New(budget, most)
		open := map[core.SequenceID]*model{}
		var ids []core.SequenceID // every id ever given
		reserved := func() (n int) {
			for _, m := range open {
				n += m.room
			}
			return n
		}
		pick := func(t *rapid.T) core.SequenceID {
			if len(ids) == 0 {
				return 99
			}
			return rapid.SampledFrom(ids).Draw(t, "id")
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				prompt := rapid.SliceOfN(rapid.Int32Range(0, 9), 0, 20).Draw(t, "prompt")
				limit := rapid.IntRange(0, 60).Draw(t, "limit")
				id, err := s.Open(prompt, limit)
				valid := len(prompt) > 0 && limit >= len(prompt)
				fits := len(open) < most && reserved()+limit <= budget
				switch {
				case !valid && (err == nil || errors.Is(err, core.ErrOutOfState)):
					t.Fatalf("invalid open: %v", err)
				case valid && !fits && !errors.Is(err, core.ErrOutOfState):
					t.Fatalf("open beyond the budget: %v", err)
				case valid && fits:
					if err != nil {
						t.Fatal(err)
					}
					if slices.Contains(ids, id) {
						t.Fatalf("id %d was given twice", id)
					}
					ids = append(ids, id)
					open[id] = &model{tokens: slices.Clone(prompt), prompt: len(prompt), room: limit}
				}
			},
			"append": func(t *rapid.T) {
				id := pick(t)
				tokens := rapid.SliceOfN(rapid.Int32Range(0, 9), 0, 10).Draw(t, "tokens")
				err := s.Append(id, tokens...)
				m := open[id]
				if want := m != nil && len(m.tokens)+len(tokens) <= m.room; (err == nil) != want {
					t.Fatalf("append: %v, want success %v", err, want)
				}
				if err == nil {
					m.tokens = append(m.tokens, tokens...)
				}
			},
			"commit": func(t *rapid.T) {
				id, pos := pick(t), rapid.IntRange(-1, 70).Draw(t, "pos")
				err := s.Commit(id, pos)
				m := open[id]
				if want := m != nil && pos >= m.at && pos <= len(m.tokens); (err == nil) != want {
					t.Fatalf("commit: %v, want success %v", err, want)
				}
				if err == nil {
					m.at = pos
				}
			},
			"close": func(t *rapid.T) {
				id := pick(t)
				s.Close(id)
				delete(open, id)
			},
			"": func(t *rapid.T) {
				st := s.Stats()
				if st.Sequences != len(open) || st.Reserved != reserved() {
					t.Fatalf("stats %+v, want %d sequences and %d reserved", st, len(open), reserved())
				}
				for _, id := range ids {
					v, ok := s.Sequence(id)
					m := open[id]
					if ok != (m != nil) {
						t.Fatalf("sequence %d: open %v", id, ok)
					}
					if !ok {
						continue
					}
					if !slices.Equal(v.Tokens, m.tokens) || v.Prompt != m.prompt || v.Committed != m.at || v.Limit != m.room {
						t.Fatalf("sequence %d: %+v, want %+v", id, v, m)
					}
					plan, err := s.Plan(id)
					if err != nil || plan.From != 0 || !slices.Equal(plan.Tokens, m.tokens) {
						t.Fatalf("plan %+v, %v", plan, err)
					}
				}
			},
		})
	})
}

// TestViewIsStable: a view taken earlier does not change when the sequence
// grows.
func TestViewIsStable(t *testing.T) {
	s := New(1000, 1)
	id, err := s.Open([]int32{1, 2}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	v, _ := s.Sequence(id)
	if err := s.Append(id, 3); err != nil {
		t.Fatal(err)
	}
	if got := append(v.Tokens, 9); !slices.Equal(got, []int32{1, 2, 9}) {
		t.Fatal(got)
	}
	if v, _ := s.Sequence(id); !slices.Equal(v.Tokens, []int32{1, 2, 3}) {
		t.Fatalf("appending to a view changed the sequence: %v", v.Tokens)
	}
}
