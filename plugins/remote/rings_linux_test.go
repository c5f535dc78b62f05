package remote

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/strata-engine/strata/sdk/shm"
	"github.com/strata-engine/strata/sdk/wire"
)

// TestRingLaneBadPeer: whatever a backend writes to the completion ring is an
// error or a completion within its slot.
func TestRingLaneBadPeer(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer wire.Completion
		change func(*shm.Entry)
		want   string
	}{
		{"slot", wire.Completion{Number: 1, Generation: 3, Status: wire.StatusOK, Slot: 99, Bytes: 8}, nil, "slot 99"},
		{"bytes", wire.Completion{Number: 1, Generation: 3, Status: wire.StatusOK, Bytes: 4097}, nil, "4097 bytes"},
		{"status", wire.Completion{Number: 1, Generation: 3, Status: 77}, nil, "status 77"},
		{"number", wire.Completion{Generation: 3, Status: wire.StatusOK}, nil, "number is zero"},
		{"generation", wire.Completion{Number: 1, Generation: 2, Status: wire.StatusOK}, nil, "another generation"},
		{"garbage", wire.Completion{Number: 1, Generation: 3, Status: wire.StatusOK}, func(e *shm.Entry) { e[63] = 1 }, "reserved"},
		{"good", wire.Completion{Number: 1, Generation: 3, Status: wire.StatusOK, Slot: 1, Bytes: 4096}, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			data, err := shm.CreateData(shm.Geometry{Slots: 2, RequestBytes: 4096, ResultBytes: 4096}, 3)
			if err != nil {
				t.Fatal(err)
			}
			defer data.Close()
			file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", data.File().Fd()), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			peer, err := shm.AttachData(file)
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			var entry shm.Entry
			c.answer.Put(&entry)
			if c.change != nil {
				c.change(&entry)
			}
			if err := peer.Completions().Push(&entry); err != nil {
				t.Fatal(err)
			}
			got, payload, err := (&ringLane{data: data}).next(context.Background())
			if c.want == "" {
				if err != nil || got != c.answer || len(payload) != c.answer.Bytes {
					t.Errorf("%+v, %d bytes, %v", got, len(payload), err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}
