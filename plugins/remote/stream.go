package remote

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// streamLane carries steps over the Steps stream. Sending and receiving have a
// goroutine each, because gRPC's calls end only with the whole stream: a step
// whose deadline passes must not wait for a backend that does not read.
type streamLane struct {
	stream grpc.BidiStreamingClient[pb.StepMessage, pb.StepMessage]
	// ctx is the stream's.
	ctx      context.Context
	cancel   context.CancelFunc
	requests []streamRequest // by slot
	// out has room for every slot, so that post does not block.
	out chan *pb.StepMessage
	in  chan *pb.StepMessage
	// failed is closed after err was written.
	failed  chan struct{}
	err     error
	workers sync.WaitGroup
}

// streamRequest is the memory of a slot's request. It is used again only after
// the answer, when gRPC has long encoded it.
type streamRequest struct {
	payload []byte
	entry   shm.Entry
}

func newStreamLane(ctx context.Context, rpc pb.BackendClient, slots int) (*streamLane, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := rpc.Steps(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	l := &streamLane{
		stream:   stream,
		ctx:      ctx,
		cancel:   cancel,
		requests: make([]streamRequest, slots),
		out:      make(chan *pb.StepMessage, slots),
		in:       make(chan *pb.StepMessage, slots),
		failed:   make(chan struct{}),
	}
	l.workers.Go(l.send)
	l.workers.Go(l.receive)
	return l, nil
}

func (l *streamLane) send() {
	for {
		select {
		case msg := <-l.out:
			if l.stream.Send(msg) != nil {
				return // receive gets the reason
			}
		case <-l.ctx.Done():
			return
		}
	}
}

func (l *streamLane) receive() {
	for {
		msg, err := l.stream.Recv()
		if err != nil {
			l.err = fmt.Errorf("the stream of steps ended: %w", err)
			close(l.failed)
			return
		}
		select {
		case l.in <- msg:
		case <-l.ctx.Done():
		}
	}
}

func (l *streamLane) request(slot uint32, n int) ([]byte, error) {
	r := &l.requests[slot]
	if n > len(r.payload) {
		r.payload = shm.AlignedBytes(n)
	}
	return r.payload, nil
}

func (l *streamLane) number(uint32) uint32 { return 0 }

func (l *streamLane) post(sub wire.Submission) error {
	r := &l.requests[sub.Slot]
	sub.Slot = l.number(sub.Slot)
	sub.Put(&r.entry)
	l.out <- &pb.StepMessage{Entry: r.entry[:], Payload: r.payload[:sub.Bytes]}
	return nil
}

func (l *streamLane) next(ctx context.Context) (wire.Completion, []byte, error) {
	var msg *pb.StepMessage
	select {
	case msg = <-l.in:
	case <-ctx.Done():
		return wire.Completion{}, nil, ctx.Err()
	case <-l.failed:
		// Usually because the process is ending, which is noticed a moment later
		// and is the better explanation.
		select {
		case <-l.ctx.Done():
		case <-time.After(time.Second):
		}
		return wire.Completion{}, nil, l.err
	}
	if len(msg.Entry) != shm.EntryBytes {
		return wire.Completion{}, nil, fmt.Errorf("an entry of %d bytes, want %d", len(msg.Entry), shm.EntryBytes)
	}
	c, err := wire.ParseCompletion((*shm.Entry)(msg.Entry))
	if err != nil {
		return wire.Completion{}, nil, err
	}
	if c.Bytes != len(msg.Payload) {
		return wire.Completion{}, nil, fmt.Errorf("a payload of %d bytes, the entry says %d", len(msg.Payload), c.Bytes)
	}
	return c, msg.Payload, nil
}

func (l *streamLane) close() error {
	l.cancel()
	l.workers.Wait()
	return nil
}
