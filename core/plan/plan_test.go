package plan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/core"
)

func TestStages(t *testing.T) {
	r := func(s string) *Range {
		v, err := ParseRange(s)
		if err != nil {
			t.Fatal(err)
		}
		return &v
	}
	tests := []struct {
		name   string
		layers int
		ranges []*Range
		draft  bool
		want   []core.Stage
		err    string
	}{
		{"one device", 8, []*Range{nil}, false, []core.Stage{{First: 0, Last: 8, Embed: true, Head: true}}, ""},
		{"one device, draft", 8, []*Range{nil}, true, []core.Stage{{First: 0, Last: 8, Embed: true, Head: true, Draft: true}}, ""},
		{"two named", 8, []*Range{r("0-3"), r("4-7")}, false, []core.Stage{{First: 0, Last: 4, Embed: true}, {First: 4, Last: 8, Head: true}}, ""},
		{"uneven", 8, []*Range{r("0"), r("1-7")}, true, []core.Stage{{First: 0, Last: 1, Embed: true}, {First: 1, Last: 8, Head: true, Draft: true}}, ""},
		{"three unnamed", 8, []*Range{nil, nil, nil}, false, []core.Stage{{First: 0, Last: 2, Embed: true}, {First: 2, Last: 5}, {First: 5, Last: 8, Head: true}}, ""},
		{"none", 8, nil, false, nil, "no devices"},
		{"mixed", 8, []*Range{r("0-3"), nil}, false, nil, "1 of 2 devices"},
		{"gap", 8, []*Range{r("0-2"), r("4-7")}, false, nil, "devices[1].layers is 4-7 but the next layer to place is 3"},
		{"overlap", 8, []*Range{r("0-4"), r("4-7")}, false, nil, "next layer to place is 5"},
		{"missing end", 8, []*Range{r("0-5")}, false, nil, "layers 6-7 are placed on no device"},
		{"beyond", 8, []*Range{r("0-8")}, false, nil, "the model's layers are 0-7"},
		{"too many devices", 2, []*Range{nil, nil, nil}, false, nil, "at most one device per layer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Stages(&core.Hyper{Layers: tt.layers, DraftLayers: 1}, tt.ranges, tt.draft)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParseRange(t *testing.T) {
	for _, s := range []string{"", "-", "3-", "a-b", "5-2", "-1-3", "1-2-3", "99999999999"} {
		if r, err := ParseRange(s); err == nil {
			t.Errorf("ParseRange(%q) = %v, want an error", s, r)
		}
	}
}

func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"0-3", "4", "", "3-1", " 1 - 2 "} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRange(s)
		if err != nil {
			return
		}
		again, err := ParseRange(r.String())
		if err != nil || again != r {
			t.Fatalf("%q -> %v -> %v, %v", s, r, again, err)
		}
	})
}
