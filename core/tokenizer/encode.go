package tokenizer

import (
	"hash/maphash"
	"strings"
)

// Part is a piece of a prompt.
type Part struct {
	// Text is the piece; any bytes.
	Text string
	// Trusted says that the text may contain control tokens: it was written by
	// the chat template or by the operator, not by whoever sent the request.
	Trusted bool
}

// Encode returns the tokens of the joined parts, without a beginning-of-sequence
// token. See the package comment for what trust means.
func (t *Tokenizer) Encode(parts ...Part) []int32 {
	return t.encode(nil, parts)
}

// EncodePrompt is Encode for the start of a sequence: the beginning-of-sequence
// token comes first where the file asks for it, unless the text begins with it
// already, as that of many chat templates does.
func (t *Tokenizer) EncodePrompt(parts ...Part) []int32 {
	ids := t.Encode(parts...)
	if !t.addBOS || len(ids) > 0 && ids[0] == t.bos {
		return ids
	}
	return append([]int32{t.bos}, ids...)
}

// span is a half-open range of bytes.
type span struct{ start, end int }

// joined returns the text of all parts and the ranges of it that are trusted, as
// long as they get.
func joined(parts []Part) (string, []span) {
	var trusted []span
	at := 0
	for _, p := range parts {
		if p.Trusted && p.Text != "" {
			if n := len(trusted); n > 0 && trusted[n-1].end == at {
				trusted[n-1].end += len(p.Text)
			} else {
				trusted = append(trusted, span{at, at + len(p.Text)})
			}
		}
		at += len(p.Text)
	}
	if len(parts) == 1 {
		return parts[0].Text, trusted
	}
	var b strings.Builder
	b.Grow(at)
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String(), trusted
}

func (t *Tokenizer) encode(out []int32, parts []Part) []int32 {
	s, trusted := joined(parts)
	e := t.encoder()
	defer t.release(e)
	if out == nil {
		out = make([]int32, 0, len(s)/3+8)
	}
	start := 0
	for i := 0; i < len(s); {
		if !t.added.first[s[i]] {
			i++
			continue
		}
		for len(trusted) > 0 && trusted[0].end <= i {
			trusted = trusted[1:]
		}
		id, end := t.added.longest(s, i, func(id int32, end int) bool {
			return t.kinds[id] != kindControl || len(trusted) > 0 && trusted[0].start <= i && end <= trusted[0].end
		})
		if id < 0 {
			i++
			continue
		}
		out = e.ordinary(out, s[start:i])
		out = append(out, id)
		i, start = end, end
	}
	return e.ordinary(out, s[start:])
}

// maxIdleEncoders bounds the encoders kept between calls.
const maxIdleEncoders = 8

// encoder is the scratch memory of one Encode call at a time.
type encoder struct {
	t     *Tokenizer
	merge merger
	buf   []int32
	seed  maphash.Seed
	cache []cached
}

// Bounds of the piece cache: prose repeats its words, and merging a word costs
// some ten times a look into the cache.
const (
	cacheEntries  = 1 << 13
	maxPieceBytes = 24
	maxPieceIDs   = 9
)

// cached holds the tokens of one piece; an entry is overwritten by the next piece
// with the same hash.
type cached struct {
	piece [maxPieceBytes]byte
	bytes uint8
	count uint8
	ids   [maxPieceIDs]int32
}

// encoder takes an idle encoder or makes one.
func (t *Tokenizer) encoder() *encoder {
	select {
	case e := <-t.scratch:
		return e
	default:
		return &encoder{t: t, merge: merger{table: t.merges}, seed: maphash.MakeSeed(), cache: make([]cached, cacheEntries)}
	}
}

// release keeps an encoder for the next call. One that a giant piece has blown up
// is left to the garbage collector.
func (t *Tokenizer) release(e *encoder) {
	if cap(e.buf) > 1<<16 {
		return
	}
	select {
	case t.scratch <- e:
	default:
	}
}

// ordinary appends the tokens of a text without added tokens.
func (e *encoder) ordinary(out []int32, s string) []int32 {
	x := text{s: s, t: planes()}
	for i := 0; i < len(s); {
		end := e.t.pre.split(x, i)
		out = e.piece(out, s[i:end])
		i = end
	}
	return out
}

// piece appends the tokens of one piece.
func (e *encoder) piece(out []int32, p string) []int32 {
	if len(p) == 1 {
		return append(out, e.t.byteIDs[p[0]])
	}
	if len(p) > maxPieceBytes {
		return append(out, e.bpe(p)...)
	}
	c := &e.cache[maphash.String(e.seed, p)&(cacheEntries-1)]
	if string(c.piece[:c.bytes]) == p {
		return append(out, c.ids[:c.count]...)
	}
	ids := e.bpe(p)
	if len(ids) <= maxPieceIDs {
		c.bytes, c.count = uint8(copy(c.piece[:], p)), uint8(copy(c.ids[:], ids))
	}
	return append(out, ids...)
}

// bpe merges the bytes of a piece. The result is valid until the next call.
func (e *encoder) bpe(p string) []int32 {
	if e.t.pieces != nil {
		if id, ok := e.t.pieces[p]; ok {
			e.buf = append(e.buf[:0], id)
			return e.buf
		}
	}
	e.buf = e.buf[:0]
	for i := 0; i < len(p); i++ {
		e.buf = append(e.buf, e.t.byteIDs[p[i]])
	}
	return e.merge.merge(e.buf)
}
