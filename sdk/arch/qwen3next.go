package arch

import (
	"github.com/strata-engine/strata/sdk/ops"
)

// qwen3next is Qwen3-Next: as qwen35moe, but value heads are in grouped order
// and β and α are one tensor.
var qwen3next = architecture{
	hyper: noSparse,
	embed: func(b *builder) *ops.Embed { return b.embed(1) },
	head:  (*builder).normHead,
	layer: func(b *builder, i int) *layer {
		l := &layer{index: i, mixer: b.plain(i, "attn_norm"), experts: b.plain(i, "post_attention_norm")}
		if b.isAttention(i) {
			l.mixer.attention = b.attention(i, true)
		} else {
			d := b.deltaNet(i, ops.GateSiLU, true)
			if b.has(block(i, "ssm_in.weight")) {
				b.fusedProjections(d)
			} else {
				b.splitProjections(d)
			}
			d.BetaAlpha = b.weight(block(i, "ssm_ba.weight"), d.Width, 2*d.ValueHeads)
			l.mixer.delta = d
		}
		l.experts.moe = b.moe(i)
		return l
	},
}

// fusedProjections walks the input projections of older files: one tensor with,
// per key head, its q and k rows and the v and z rows of its value heads. The
// rows are copied in the order of the split tensors; this is the one case in
// which a weight is not used where it lies.
func (b *builder) fusedProjections(d *ops.DeltaNet) {
	name := block(d.Layer, "ssm_in.weight")
	rows := b.channels() + d.ValueHeads*d.ValueDim
	values := d.ValueHeads / d.KeyHeads * d.ValueDim
	group := 2*d.KeyDim + 2*values
	pick := func(at, n int) []int {
		var out []int
		for head := range d.KeyHeads {
			for i := range n {
				out = append(out, head*group+at+i)
			}
		}
		return out
	}
	qkv := append(append(pick(0, d.KeyDim), pick(d.KeyDim, d.KeyDim)...), pick(2*d.KeyDim, values)...)
	d.QKV = b.changed(name, pickRows(qkv), d.Width, rows)
	d.Gate = b.changed(name, pickRows(pick(2*d.KeyDim+values, values)), d.Width, rows)
}

// pickRows makes a matrix of some rows of another.
func pickRows(rows []int) func(ops.Tensor) ops.Tensor {
	return func(t ops.Tensor) ops.Tensor {
		size := len(t.Data) / int(t.Dims[1])
		data := make([]byte, 0, len(rows)*size)
		for _, r := range rows {
			data = append(data, t.Data[r*size:(r+1)*size]...)
		}
		t.Dims, t.Data = []int64{t.Dims[0], int64(len(rows))}, data
		return t
	}
}
