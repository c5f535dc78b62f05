package remote

import (
	"context"
	"fmt"

	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// ringLane carries steps through the rings and slots of a data segment.
type ringLane struct {
	data *shm.Data
}

func (l *ringLane) request(slot uint32, _ int) ([]byte, error) { return l.data.RequestSlot(slot) }

func (l *ringLane) number(slot uint32) uint32 { return slot }

// post never finds the ring full: it has room for every slot.
func (l *ringLane) post(sub wire.Submission) error {
	var entry shm.Entry
	sub.Put(&entry)
	return l.data.Submissions().Push(&entry)
}

func (l *ringLane) next(ctx context.Context) (wire.Completion, []byte, error) {
	var entry shm.Entry
	if err := l.data.Completions().Pop(ctx, &entry); err != nil {
		return wire.Completion{}, nil, err
	}
	c, err := wire.ParseCompletion(&entry)
	if err != nil {
		return wire.Completion{}, nil, err
	}
	payload, err := l.data.ResultSlot(c.Slot)
	if err != nil {
		return wire.Completion{}, nil, err
	}
	if c.Bytes > len(payload) {
		return wire.Completion{}, nil, fmt.Errorf("a result of %d bytes in a slot of %d", c.Bytes, len(payload))
	}
	return c, payload[:c.Bytes], nil
}

func (l *ringLane) close() error { return l.data.Close() }
