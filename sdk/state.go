package sdk

import (
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/shm"
)

// StateChunkBytes is the most data that one StateMessage carries.
const StateChunkBytes = 1 << 20

// maxSections bounds a state: a few sections per layer.
const maxSections = 1 << 16

// Checkpoint implements pb.BackendServer.
func (s *Server) Checkpoint(req *pb.CheckpointRequest, stream grpc.ServerStreamingServer[pb.StateMessage]) error {
	s.calls.Add(1)
	backend, ok := s.backend.(BackendWithState)
	if !ok {
		return status.Error(codes.Unimplemented, "checkpoint: the backend cannot hand out state")
	}
	var resp CheckpointResponse
	err := s.executor.call(stream.Context(), func() error {
		ctx, cancel := s.executor.join(stream.Context())
		defer cancel()
		s.vitals.SetPhase(shm.PhaseCheckpoint)
		defer s.vitals.SetPhase(shm.PhaseIdle)
		return s.executor.guard("checkpoint", func() error {
			return backend.Checkpoint(ctx, CheckpointRequest{Sequence: req.Sequence}, &resp)
		})
	})
	if err != nil {
		return rpcError("checkpoint", err)
	}
	return sendState(stream, &resp.State)
}

// sendState streams the header, then every section in chunks.
func sendState(stream grpc.ServerStreamingServer[pb.StateMessage], state *State) error {
	header := &pb.StateHeader{LayoutId: state.LayoutID, Tokens: int64(state.Tokens)}
	for _, section := range state.Sections {
		header.Sections = append(header.Sections, &pb.StateSection{
			Layer: int32(section.Layer),
			Kind:  int32(section.Kind),
			Bytes: int64(len(section.Data)),
		})
	}
	if err := stream.Send(&pb.StateMessage{Kind: &pb.StateMessage_Header{Header: header}}); err != nil {
		return err
	}
	for i, section := range state.Sections {
		for at := 0; at < len(section.Data); at += StateChunkBytes {
			chunk := &pb.StateChunk{
				Section: int32(i),
				Offset:  int64(at),
				Data:    section.Data[at:min(at+StateChunkBytes, len(section.Data))],
			}
			if err := stream.Send(&pb.StateMessage{Kind: &pb.StateMessage_Chunk{Chunk: chunk}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Restore implements pb.BackendServer.
func (s *Server) Restore(stream grpc.ClientStreamingServer[pb.StateMessage, pb.RestoreResponse]) error {
	s.calls.Add(1)
	backend, ok := s.backend.(BackendWithState)
	if !ok {
		return status.Error(codes.Unimplemented, "restore: the backend cannot take state")
	}
	sequence, state, err := receiveState(stream.Recv)
	if err != nil {
		if _, isStatus := status.FromError(err); isStatus {
			return err
		}
		return rpcError("restore", err)
	}
	err = s.executor.call(stream.Context(), func() error {
		if s.executor.stage == nil {
			return fmt.Errorf("%w: no stage is loaded", errPrecondition)
		}
		ctx, cancel := s.executor.join(stream.Context())
		defer cancel()
		s.vitals.SetPhase(shm.PhaseRestore)
		defer s.vitals.SetPhase(shm.PhaseIdle)
		return s.executor.guard("restore", func() error {
			return backend.Restore(ctx, RestoreRequest{Sequence: sequence, State: *state}, &RestoreResponse{})
		})
	})
	if err != nil {
		return rpcError("restore", err)
	}
	return stream.SendAndClose(&pb.RestoreResponse{})
}

// receiveState reads a state until the end of the stream. Memory grows with what
// arrives, not with what the header claims.
func receiveState(recv func() (*pb.StateMessage, error)) (sequence uint64, state *State, err error) {
	first, err := recv()
	if errors.Is(err, io.EOF) {
		return 0, nil, fmt.Errorf("%w: no header", ErrInvalid)
	}
	if err != nil {
		return 0, nil, err
	}
	header := first.GetHeader()
	if header == nil {
		return 0, nil, fmt.Errorf("%w: the first message is no header", ErrInvalid)
	}
	if header.Tokens < 0 || header.Tokens > math.MaxInt32 || len(header.Sections) > maxSections {
		return 0, nil, fmt.Errorf("%w: %d tokens in %d sections", ErrInvalid, header.Tokens, len(header.Sections))
	}
	state = &State{LayoutID: header.LayoutId, Tokens: int(header.Tokens)}
	for i, section := range header.Sections {
		if section.GetBytes() < 0 || section.GetLayer() < 0 || section.GetKind() < 0 || section.GetKind() > math.MaxUint8 {
			return 0, nil, fmt.Errorf("%w: section %d: layer %d, kind %d, %d bytes",
				ErrInvalid, i, section.GetLayer(), section.GetKind(), section.GetBytes())
		}
		state.Sections = append(state.Sections, StateSection{Layer: int(section.Layer), Kind: uint8(section.Kind)})
	}
	// at is the section being filled.
	at := 0
	for {
		msg, err := recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, nil, err
		}
		chunk := msg.GetChunk()
		if chunk == nil {
			return 0, nil, fmt.Errorf("%w: a second header", ErrInvalid)
		}
		for at < len(state.Sections) && int64(len(state.Sections[at].Data)) == header.Sections[at].Bytes {
			at++
		}
		if at == len(state.Sections) || int64(chunk.Section) != int64(at) ||
			chunk.Offset != int64(len(state.Sections[at].Data)) ||
			int64(len(chunk.Data)) > header.Sections[at].Bytes-chunk.Offset {
			return 0, nil, fmt.Errorf("%w: %d bytes for section %d at %d do not continue the state",
				ErrInvalid, len(chunk.Data), chunk.Section, chunk.Offset)
		}
		state.Sections[at].Data = append(state.Sections[at].Data, chunk.Data...)
	}
	for i := range state.Sections {
		if have := int64(len(state.Sections[i].Data)); have != header.Sections[i].Bytes {
			return 0, nil, fmt.Errorf("%w: section %d has %d bytes of %d", ErrInvalid, i, have, header.Sections[i].Bytes)
		}
	}
	return header.Sequence, state, nil
}
