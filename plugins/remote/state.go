package remote

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/strata-engine/strata/core"
	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk"
)

// errBadState: a stream of state that breaks the protocol.
var errBadState = errors.New("malformed state")

// maxStateSections bounds a state: a few sections per layer.
const maxStateSections = 1 << 16

// receiveState reads a state from a stream until its end. Memory grows with what
// arrives, not with what the header claims. errBadState for a malformed one, else
// the stream's error.
func receiveState(recv func() (*pb.StateMessage, error)) (*core.State, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", errBadState, fmt.Sprintf(format, args...))
	}
	first, err := recv()
	switch {
	case errors.Is(err, io.EOF):
		return nil, bad("it is empty")
	case err != nil:
		return nil, err
	}
	header := first.GetHeader()
	switch {
	case header == nil:
		return nil, bad("it does not begin with a header")
	case header.Tokens < 0 || header.Tokens > math.MaxInt32 || len(header.Sections) > maxStateSections:
		return nil, bad("%d tokens in %d sections", header.Tokens, len(header.Sections))
	}
	state := &core.State{LayoutID: header.LayoutId, Tokens: int(header.Tokens), Sections: make([]core.StateSection, len(header.Sections))}
	for i, s := range header.Sections {
		if s.GetBytes() < 0 || s.GetLayer() < 0 || s.GetKind() < 1 || s.GetKind() > math.MaxUint8 {
			return nil, bad("section %d has layer %d, kind %d and %d bytes", i, s.GetLayer(), s.GetKind(), s.GetBytes())
		}
		state.Sections[i] = core.StateSection{Layer: int(s.GetLayer()), Kind: core.StateKind(s.GetKind())}
	}
	missing := func(i int) int64 { return header.Sections[i].Bytes - int64(len(state.Sections[i].Data)) }
	at := 0 // the section being filled
	for {
		msg, err := recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		chunk := msg.GetChunk()
		for at < len(state.Sections) && missing(at) == 0 {
			at++
		}
		if chunk == nil || at == len(state.Sections) || int64(chunk.Section) != int64(at) ||
			chunk.Offset != int64(len(state.Sections[at].Data)) || int64(len(chunk.Data)) > missing(at) {
			return nil, bad("section %d is not continued", at)
		}
		state.Sections[at].Data = append(state.Sections[at].Data, chunk.Data...)
	}
	for i := range state.Sections {
		if n := missing(i); n != 0 {
			return nil, bad("section %d lacks %d bytes", i, n)
		}
	}
	return state, nil
}

// sendState writes a state to a stream.
func sendState(send func(*pb.StateMessage) error, seq core.SequenceID, state *core.State) error {
	header := &pb.StateHeader{Sequence: uint64(seq), LayoutId: state.LayoutID, Tokens: int64(state.Tokens)}
	for _, s := range state.Sections {
		header.Sections = append(header.Sections, &pb.StateSection{
			Layer: int32(s.Layer),
			Kind:  int32(s.Kind),
			Bytes: int64(len(s.Data)),
		})
	}
	if err := send(&pb.StateMessage{Kind: &pb.StateMessage_Header{Header: header}}); err != nil {
		return err
	}
	for i, s := range state.Sections {
		for at := 0; at < len(s.Data); at += sdk.StateChunkBytes {
			chunk := &pb.StateChunk{Section: int32(i), Offset: int64(at), Data: s.Data[at:min(at+sdk.StateChunkBytes, len(s.Data))]}
			if err := send(&pb.StateMessage{Kind: &pb.StateMessage_Chunk{Chunk: chunk}}); err != nil {
				return err
			}
		}
	}
	return nil
}
