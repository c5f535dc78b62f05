package arch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	pb "github.com/strata-engine/strata/plugins/proto/strata/backend/v1alpha1"
	"github.com/strata-engine/strata/sdk/ops"
)

// builder walks a model. Without load it only compares names and shapes and all
// weights are nil.
type builder struct {
	spec  *pb.ModelSpec
	h     *pb.Hyper
	table map[string]*pb.Tensor
	// load makes a weight, of what change makes of the tensor where that is set.
	load func(t *pb.Tensor, change func(ops.Tensor) ops.Tensor) (ops.Weight, error)
	// progress is told after each weight.
	progress func(bytes, total int64)
	// bytes counts the tensors visited, mapped those of them that are used as they
	// lie in the file; total is what bytes will be in the end.
	bytes, mapped, total int64
	// made are the weights by name, so that a tensor used twice is made once.
	made map[string]ops.Weight
	// err is the first error of load.
	err error

	visited        map[string]bool
	missing, wrong []string
}

func newBuilder(spec *pb.ModelSpec) *builder {
	b := &builder{
		spec:    spec,
		h:       spec.GetHyper(),
		table:   make(map[string]*pb.Tensor, len(spec.GetTensors())),
		visited: make(map[string]bool, len(spec.GetTensors())),
		made:    make(map[string]ops.Weight),
	}
	for _, t := range spec.GetTensors() {
		b.table[t.GetName()] = t
	}
	return b
}

func (b *builder) layers() int { return int(b.h.GetLayers()) }

// has reports whether the file has a tensor.
func (b *builder) has(name string) bool { return b.table[name] != nil }

// weight visits the tensor of that name, which must have exactly these extents
// (contiguous dimension first; further extents of 1 do not count).
func (b *builder) weight(name string, dims ...int) ops.Weight {
	return b.changed(name, nil, dims...)
}

// changed is weight for a tensor that is not used as it lies in the file.
func (b *builder) changed(name string, change func(ops.Tensor) ops.Tensor, dims ...int) ops.Weight {
	t := b.table[name]
	if t == nil {
		b.missing = append(b.missing, name)
		return nil
	}
	want := make([]int64, len(dims))
	for i, d := range dims {
		want[i] = int64(d)
	}
	if got := trimOnes(t.GetDims()); !slices.Equal(got, trimOnes(want)) {
		b.visited[name] = true
		b.wrong = append(b.wrong, fmt.Sprintf("%s is %v and must be %v", name, t.GetDims(), want))
		return nil
	}
	return b.visit(t, change)
}

// visit counts a tensor and makes its weight.
func (b *builder) visit(t *pb.Tensor, change func(ops.Tensor) ops.Tensor) ops.Weight {
	if !b.visited[t.GetName()] {
		b.visited[t.GetName()] = true
		b.bytes += t.GetBytes()
		if change == nil {
			b.mapped += t.GetBytes()
		}
	}
	if b.load == nil || b.err != nil {
		return nil
	}
	if w := b.made[t.GetName()]; w != nil && change == nil {
		return w
	}
	w, err := b.load(t, change)
	if err != nil {
		b.err = err
		return nil
	}
	if change == nil {
		b.made[t.GetName()] = w
	}
	if b.progress != nil {
		b.progress(b.bytes, b.total)
	}
	return w
}

// rows is weight for a table whose number of rows is for the file to say, but
// at least the given one.
func (b *builder) rows(name string, width int, least int64) ops.Weight {
	t := b.table[name]
	if t == nil {
		b.missing = append(b.missing, name)
		return nil
	}
	if d := t.GetDims(); len(d) != 2 || d[0] != int64(width) || d[1] < least {
		b.visited[name] = true
		b.wrong = append(b.wrong, fmt.Sprintf("%s is %v and must be [%d, %d or more]", name, d, width, least))
		return nil
	}
	return b.visit(t, nil)
}

// optional is weight for a tensor that may be absent: nil then.
func (b *builder) optional(name string, dims ...int) ops.Weight {
	if !b.has(name) {
		return nil
	}
	return b.weight(name, dims...)
}

// ignoreLayer accepts all tensors of a layer without using them.
func (b *builder) ignoreLayer(i int) {
	for name := range b.table {
		if strings.HasPrefix(name, block(i, "")) {
			b.visited[name] = true
		}
	}
}

// ignore accepts tensors, where they are there, without using them.
func (b *builder) ignore(names ...string) {
	for _, name := range names {
		b.visited[name] = true
	}
}

// block is the name of a layer's tensor.
func block(i int, name string) string { return fmt.Sprintf("blk.%d.%s", i, name) }

func trimOnes(dims []int64) []int64 {
	for len(dims) > 1 && dims[len(dims)-1] == 1 {
		dims = dims[:len(dims)-1]
	}
	return dims
}

// mistakes is the error for missing tensors and wrong shapes.
func (b *builder) mistakes() error {
	return b.describe(nil)
}

// complaint is the error for missing and surplus tensors and wrong shapes.
func (b *builder) complaint() error {
	var surplus []string
	for _, t := range b.spec.GetTensors() {
		if !b.visited[t.GetName()] {
			surplus = append(surplus, t.GetName())
		}
	}
	return b.describe(surplus)
}

func (b *builder) describe(surplus []string) error {
	var parts []string
	for _, p := range []struct {
		what  string
		names []string
	}{{"missing tensors: ", b.missing}, {"wrong shapes: ", b.wrong}, {"tensors that do not belong to the architecture: ", surplus}} {
		if len(p.names) > 0 {
			parts = append(parts, p.what+few(p.names))
		}
	}
	if parts == nil {
		return nil
	}
	return fmt.Errorf("not a complete %s model: %s", b.spec.GetArchitecture(), strings.Join(parts, "; "))
}

// few lists the first names, each once, and says how many more there are.
func few(names []string) string {
	const most = 4
	var once []string
	for _, name := range names {
		if quoted := strconv.Quote(name); quoted != `"`+name+`"` {
			name = quoted // the file says it: no control characters in a message
		}
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	names = once
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
