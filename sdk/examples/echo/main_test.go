package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/sdktest"
	"github.com/strata-engine/strata/sdk/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEcho(t *testing.T) {
	p := sdktest.Connect(t, &echo{log: hclog.NewNullLogger()}, sdktest.Options{})
	req := &pb.LoadStageRequest{
		Model:        sdktest.Model(2, 4, 1, 10),
		Stage:        &pb.Stage{Last: 2, Embed: true, Head: true},
		Context:      100,
		MaxSequences: 2,
		MaxRows:      8,
		MaxLogitRows: 8,
	}
	if _, _, err := p.Load(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(3) {
		_, err := p.Client.OpenSequence(t.Context(), &pb.OpenSequenceRequest{Sequence: id})
		if want := map[bool]codes.Code{true: codes.OK, false: codes.ResourceExhausted}[id < 2]; status.Code(err) != want {
			t.Fatalf("open %d: %v", id, err)
		}
	}
	bounds := wire.Bounds{MaxSequences: 2, MaxRows: 8, MaxLogitRows: 8, Width: 4, Vocab: 10, Embed: true, Head: true}
	result, err := p.Step(t.Context(), &wire.Window{Segments: []wire.Segment{
		{Sequence: 1, Tokens: []int32{3, 7}, Logits: []int32{0, 1}},
		{Sequence: 0, Tokens: []int32{5}, Logits: []int32{0}},
	}}, bounds)
	if err != nil {
		t.Fatal(err)
	}
	for row, want := range []int{3, 7, 5} {
		logits := result.Matrix[row*10 : (row+1)*10]
		if got := slices.Index(logits, slices.Max(logits)); got != want {
			t.Errorf("row %d answers %d, want %d", row, got, want)
		}
	}
	for _, bad := range []struct {
		segment wire.Segment
		want    wire.Status
	}{
		{wire.Segment{Sequence: 9, Tokens: []int32{1}}, wire.StatusUnknownSequence},
		{wire.Segment{Sequence: 1, Pos: 1, Tokens: []int32{1}}, wire.StatusInvalid},
	} {
		_, err := p.Step(t.Context(), &wire.Window{Segments: []wire.Segment{bad.segment}}, bounds)
		var refused *sdktest.StatusError
		if !errors.As(err, &refused) || refused.Status != bad.want {
			t.Errorf("%+v: %v, want %v", bad.segment, err, bad.want)
		}
	}
	if _, err := p.Client.Unload(t.Context(), &pb.UnloadRequest{}); err != nil {
		t.Error(err)
	}
}
