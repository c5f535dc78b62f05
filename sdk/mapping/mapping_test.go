package mapping

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/quant"
)

// model writes a file of 64 bytes and returns a spec with one tensor of 4x2
// float32 values at 16.
func model(t *testing.T) *pb.ModelSpec {
	t.Helper()
	data := make([]byte, 64)
	for i := range data {
		data[i] = byte(i)
	}
	path := filepath.Join(t.TempDir(), "model.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return &pb.ModelSpec{
		Shards:  []*pb.Shard{{Path: path, Size: 64, Inode: inode(info)}},
		Tensors: []*pb.Tensor{{Name: "w", Dims: []int64{4, 2}, Offset: 16, Bytes: 32}},
	}
}

func TestTensorInPlace(t *testing.T) {
	f, err := Open(model(t))
	if err != nil {
		t.Fatal(err)
	}
	w, err := f.Tensor("w")
	if err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 32)
	for i := range want {
		want[i] = byte(16 + i)
	}
	if diff := cmp.Diff(want, w.Data); diff != "" {
		t.Error(diff)
	}
	if w.Type != quant.F32 || w.Name != "w" || len(w.Dims) != 2 {
		t.Errorf("tensor is %+v", w)
	}
	if got := f.Bytes(); got != 64 {
		t.Errorf("Bytes() = %d, want 64", got)
	}
	for range 2 {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Tensor("w"); err == nil {
		t.Error("a tensor of closed files")
	}
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, s *pb.ModelSpec)
		want   string
	}{
		{"missing", func(_ *testing.T, s *pb.ModelSpec) { s.Shards[0].Path += ".gone" }, "model.gguf.gone"},
		{"longer", func(_ *testing.T, s *pb.ModelSpec) { s.Shards[0].Size-- }, "has 64 bytes and had 63"},
		{"shorter", func(t *testing.T, s *pb.ModelSpec) {
			if err := os.Truncate(s.Shards[0].Path, 10); err != nil {
				t.Fatal(err)
			}
		}, "has 10 bytes and had 64"},
		{"folder", func(t *testing.T, s *pb.ModelSpec) { s.Shards[0].Path = t.TempDir() }, "is not a regular file"},
		{"empty", func(t *testing.T, s *pb.ModelSpec) {
			s.Shards[0].Size = 0
			if err := os.Truncate(s.Shards[0].Path, 0); err != nil {
				t.Fatal(err)
			}
		}, "cannot be mapped"},
		{"twice", func(_ *testing.T, s *pb.ModelSpec) { s.Tensors = append(s.Tensors, s.Tensors[0]) }, `tensor "w" is listed twice`},
	}
	if inodes {
		tests = append(tests, struct {
			name   string
			change func(t *testing.T, s *pb.ModelSpec)
			want   string
		}{"replaced", func(_ *testing.T, s *pb.ModelSpec) { s.Shards[0].Inode++ }, "model.gguf was replaced"})
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := model(t)
			tt.change(t, spec)
			f, err := Open(spec)
			if err == nil {
				f.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q does not contain %q", err, tt.want)
			}
		})
	}
}

func TestTensorRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(w *pb.Tensor)
		want   string
	}{
		{"behind the end", func(w *pb.Tensor) { w.Offset = 33 }, "32 bytes at 33 are not within the 64 bytes"},
		{"far behind the end", func(w *pb.Tensor) { w.Offset = 1 << 62 }, "not within"},
		{"overflowing", func(w *pb.Tensor) { w.Offset = 16; w.Bytes = 1<<63 - 1 }, "not within"},
		{"negative", func(w *pb.Tensor) { w.Offset = -1 }, "not within"},
		{"negative length", func(w *pb.Tensor) { w.Bytes = -1 }, "not within"},
		{"shard", func(w *pb.Tensor) { w.Shard = 1 }, "shard 1 of 1"},
		{"negative shard", func(w *pb.Tensor) { w.Shard = -1 }, "shard -1 of 1"},
		{"length", func(w *pb.Tensor) { w.Bytes = 28 }, "need 32 bytes, the table says 28"},
		{"type", func(w *pb.Tensor) { w.Type = 9999 }, "unknown tensor type 9999"},
		{"blocks", func(w *pb.Tensor) { w.Type = uint32(quant.Q8_0) }, "no multiple"},
		{"no extents", func(w *pb.Tensor) { w.Dims = nil }, "no extents"},
		{"zero extent", func(w *pb.Tensor) { w.Dims = []int64{4, 0} }, "out of range"},
		{"huge extents", func(w *pb.Tensor) { w.Dims = []int64{1 << 40, 1 << 40} }, "out of range"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := model(t)
			spec.Tensors = []*pb.Tensor{proto.CloneOf(spec.Tensors[0])}
			tt.change(spec.Tensors[0])
			f, err := Open(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err = f.Tensor("w"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v does not contain %q", err, tt.want)
			}
		})
	}
}
