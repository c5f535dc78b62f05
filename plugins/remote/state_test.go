package remote

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/strata-engine/strata/core"
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
)

// messages returns a receiver of the given messages.
func messages(list ...*pb.StateMessage) func() (*pb.StateMessage, error) {
	return func() (*pb.StateMessage, error) {
		if len(list) == 0 {
			return nil, io.EOF
		}
		m := list[0]
		list = list[1:]
		return m, nil
	}
}

func header(tokens int64, sections ...*pb.StateSection) *pb.StateMessage {
	return &pb.StateMessage{Kind: &pb.StateMessage_Header{Header: &pb.StateHeader{LayoutId: "l", Tokens: tokens, Sections: sections}}}
}

func section(layer, kind int32, n int64) *pb.StateSection {
	return &pb.StateSection{Layer: layer, Kind: kind, Bytes: n}
}

func chunk(section int32, offset int64, data string) *pb.StateMessage {
	return &pb.StateMessage{Kind: &pb.StateMessage_Chunk{Chunk: &pb.StateChunk{Section: section, Offset: offset, Data: []byte(data)}}}
}

func TestStateRoundTrip(t *testing.T) {
	for _, want := range []*core.State{
		{LayoutID: "empty"},
		{LayoutID: "x", Tokens: 7, Sections: []core.StateSection{
			{Layer: 0, Kind: core.StateKV, Data: bytes.Repeat([]byte("ab"), sdk.StateChunkBytes)},
			{Layer: 1, Kind: core.StateDelta},
			{Layer: 1, Kind: core.StateConv, Data: []byte("c")},
			{Layer: 9, Kind: core.StateDraft},
		}},
	} {
		var sent []*pb.StateMessage
		send := func(m *pb.StateMessage) error { sent = append(sent, m); return nil }
		if err := sendState(send, 3, want); err != nil {
			t.Fatal(err)
		}
		if id := sent[0].GetHeader().Sequence; id != 3 {
			t.Errorf("sequence %d", id)
		}
		got, err := receiveState(messages(sent...))
		if err != nil {
			t.Fatal(err)
		}
		if want.Sections == nil {
			want.Sections = []core.StateSection{}
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(bytes.Equal)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestBadState(t *testing.T) {
	for name, list := range map[string][]*pb.StateMessage{
		"nothing":           {},
		"no header":         {chunk(0, 0, "x")},
		"empty message":     {{}},
		"negative tokens":   {header(-1)},
		"too many tokens":   {header(1 << 40)},
		"negative bytes":    {header(1, section(0, 1, -5))},
		"kind":              {header(1, section(0, 300, 5))},
		"layer":             {header(1, section(-1, 1, 5))},
		"nil section":       {header(1, nil)},
		"missing data":      {header(1, section(0, 1, 5)), chunk(0, 0, "abcd")},
		"no data":           {header(1, section(0, 1, 1<<60))},
		"surplus data":      {header(1, section(0, 1, 3)), chunk(0, 0, "abcd")},
		"data behind":       {header(1, section(0, 1, 3)), chunk(0, 0, "abc"), chunk(0, 3, "d")},
		"gap":               {header(1, section(0, 1, 4)), chunk(0, 1, "abc")},
		"order":             {header(1, section(0, 1, 1), section(1, 1, 1)), chunk(1, 0, "a"), chunk(0, 0, "b")},
		"section":           {header(1, section(0, 1, 1)), chunk(7, 0, "a")},
		"two headers":       {header(1, section(0, 1, 1)), header(1)},
		"too many sections": {header(1, make([]*pb.StateSection, maxStateSections+1)...)},
	} {
		if state, err := receiveState(messages(list...)); !errors.Is(err, errBadState) {
			t.Errorf("%s: %v, %v", name, state, err)
		}
	}
	broken := errors.New("broken")
	if _, err := receiveState(func() (*pb.StateMessage, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("stream error: %v", err)
	}
}

// FuzzReceiveState reads states from length-prefixed messages.
func FuzzReceiveState(f *testing.F) {
	for _, list := range [][]*pb.StateMessage{
		{header(3, section(0, 1, 3), section(1, 3, 2)), chunk(0, 0, "ab"), chunk(0, 2, "c"), chunk(1, 0, "de")},
		{header(3, section(0, 1, 1<<62)), chunk(0, 0, "ab")},
		{chunk(0, 0, "")},
	} {
		var b []byte
		for _, m := range list {
			data, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			b = append(binary.LittleEndian.AppendUint16(b, uint16(len(data))), data...)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		state, err := receiveState(func() (*pb.StateMessage, error) {
			if len(b) < 2 {
				return nil, io.EOF
			}
			n := min(int(binary.LittleEndian.Uint16(b)), len(b)-2)
			m := &pb.StateMessage{}
			if err := proto.Unmarshal(b[2:2+n], m); err != nil {
				return nil, io.ErrUnexpectedEOF
			}
			b = b[2+n:]
			return m, nil
		})
		if err != nil {
			return
		}
		// What was accepted is the same after another trip.
		var sent []*pb.StateMessage
		if err := sendState(func(m *pb.StateMessage) error { sent = append(sent, m); return nil }, 1, state); err != nil {
			t.Fatal(err)
		}
		again, err := receiveState(messages(sent...))
		if err != nil {
			t.Fatal(err)
		}
		for i := range state.Sections {
			if !bytes.Equal(state.Sections[i].Data, again.Sections[i].Data) {
				t.Errorf("section %d differs", i)
			}
		}
		if again.Tokens != state.Tokens || again.LayoutID != state.LayoutID || len(again.Sections) != len(state.Sections) {
			t.Errorf("%+v became %+v", state, again)
		}
	})
}
