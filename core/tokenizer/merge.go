package tokenizer

import (
	"math/bits"
	"slices"
)

// mergeRule says that two adjacent tokens become one.
type mergeRule struct {
	key  uint64 // left<<32 | right
	rank int32  // position in the file's list: lower is merged earlier
	id   int32  // the token that results
}

// mergeTable finds rules by their pair of tokens: an open-addressing hash table,
// because a lookup is the unit of work of BPE. Read-only once built.
type mergeTable struct {
	slots []mergeRule // id < 0: free
	shift uint        // 64 - log2(len(slots))
	ranks int         // ranks are below this
}

// newMergeTable makes room for n rules at a load of at most one half.
func newMergeTable(n int) *mergeTable {
	size := uint(bits.Len(uint(2*n + 15)))
	t := &mergeTable{slots: make([]mergeRule, 1<<size), shift: 64 - size, ranks: n}
	for i := range t.slots {
		t.slots[i].id = -1
	}
	return t
}

func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// slot returns where key is, or the free slot where it belongs.
func (t *mergeTable) slot(key uint64) *mergeRule {
	// Fibonacci hashing; the multiplier is 2^64 divided by the golden ratio.
	for i := key * 0x9E3779B97F4A7C15 >> t.shift; ; i++ {
		s := &t.slots[i&uint64(len(t.slots)-1)]
		if s.id < 0 || s.key == key {
			return s
		}
	}
}

// add records a rule; the first of two rules for a pair counts.
func (t *mergeTable) add(left, right, rank, id int32) {
	key := pairKey(left, right)
	if s := t.slot(key); s.id < 0 {
		*s = mergeRule{key, rank, id}
	}
}

// find returns the rule for a pair, or nil.
func (t *mergeTable) find(left, right int32) *mergeRule {
	if s := t.slot(pairKey(left, right)); s.id >= 0 {
		return s
	}
	return nil
}

// shortPiece is the length in tokens up to which looking at all pairs for each
// merge is faster than keeping a queue.
const shortPiece = 48

// merger carries out BPE (Sennrich et al., 2016): the pair with the lowest rank,
// leftmost first, is merged until no pair has a rule. It keeps its scratch
// memory; not safe for concurrent use.
type merger struct {
	table *mergeTable
	ranks []int32
	ids   []int32
	links []link
	queue queue
	at    []int32
}

// noRank marks a pair without a rule.
const noRank = int32(1<<31 - 1)

// merge reduces the tokens of one piece in place and returns what is left.
func (m *merger) merge(ids []int32) []int32 {
	if len(ids) > shortPiece {
		return m.mergeLong(ids)
	}
	// ranks[i] and results[i] belong to the pair (i, i+1).
	m.ranks, m.ids = m.ranks[:0], m.ids[:0]
	for i := 0; i+1 < len(ids); i++ {
		rank, id := m.rule(ids[i], ids[i+1])
		m.ranks, m.ids = append(m.ranks, rank), append(m.ids, id)
	}
	ranks, results := m.ranks, m.ids
	for {
		best, at := noRank, -1
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at] = results[at]
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		results = append(results[:at], results[at+1:]...)
		if at < len(ranks) {
			ranks[at], results[at] = m.rule(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1], results[at-1] = m.rule(ids[at-1], ids[at])
		}
	}
}

func (m *merger) rule(left, right int32) (rank, id int32) {
	if r := m.table.find(left, right); r != nil {
		return r.rank, r.id
	}
	return noRank, -1
}

// link is a token in a doubly linked list; id < 0 once merged into its left
// neighbour.
type link struct{ id, prev, next int32 }

// place is an entry of the list of positions where a rule may apply. It is stale
// where the tokens there have changed since.
type place struct{ at, next int32 }

// queue holds the possible merges of one long piece: a list of places for every
// rank and a heap of the ranks that have any.
type queue struct {
	heads  []int32 // per rank: an index into places, or -1
	places []place
	ranks  []int32 // binary min-heap
}

// reset empties the queue for a table with the given number of ranks.
func (q *queue) reset(ranks int) {
	if q.heads == nil {
		q.heads = make([]int32, ranks)
		for i := range q.heads {
			q.heads[i] = -1
		}
	}
	q.places, q.ranks = q.places[:0], q.ranks[:0]
}

// add offers a place for the rule with the given rank.
func (q *queue) add(rank, at int32) {
	if q.heads[rank] < 0 {
		q.ranks = append(q.ranks, rank)
		for i := len(q.ranks) - 1; i > 0 && q.ranks[i] < q.ranks[(i-1)/2]; i = (i - 1) / 2 {
			q.ranks[i], q.ranks[(i-1)/2] = q.ranks[(i-1)/2], q.ranks[i]
		}
	}
	q.places = append(q.places, place{at, q.heads[rank]})
	q.heads[rank] = int32(len(q.places) - 1)
}

// take removes the lowest rank and appends its places to at, from left to right.
func (q *queue) take(at []int32) (rank int32, places []int32) {
	rank = q.ranks[0]
	last := len(q.ranks) - 1
	q.ranks[0] = q.ranks[last]
	q.ranks = q.ranks[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && q.ranks[child+1] < q.ranks[child] {
			child++
		}
		if child >= last || q.ranks[i] <= q.ranks[child] {
			break
		}
		q.ranks[i], q.ranks[child] = q.ranks[child], q.ranks[i]
		i = child
	}
	for i := q.heads[rank]; i >= 0; i = q.places[i].next {
		at = append(at, q.places[i].at)
	}
	q.heads[rank] = -1
	slices.Sort(at)
	return rank, at
}

// mergeLong does the same as merge without looking at all pairs again: rank by
// rank, and within a rank from left to right. It takes O(n log n) for n tokens.
func (m *merger) mergeLong(ids []int32) []int32 {
	q := &m.queue
	q.reset(m.table.ranks)
	m.links = m.links[:0]
	for i, id := range ids {
		m.links = append(m.links, link{id, int32(i) - 1, int32(i) + 1})
		if i+1 < len(ids) {
			if r := m.table.find(id, ids[i+1]); r != nil {
				q.add(r.rank, int32(i))
			}
		}
	}
	links := m.links
	links[len(links)-1].next = -1
	for len(q.ranks) > 0 {
		var rank int32
		rank, m.at = q.take(m.at[:0])
		for i, at := range m.at {
			if len(q.ranks) > 0 && q.ranks[0] < rank {
				// The last merge made way for a better one: that goes first.
				for _, later := range m.at[i:] {
					q.add(rank, later)
				}
				break
			}
			l := &links[at]
			if l.id < 0 || l.next < 0 {
				continue
			}
			r := &links[l.next]
			rule := m.table.find(l.id, r.id)
			if rule == nil || rule.rank != rank {
				continue
			}
			l.id, r.id = rule.id, -1
			l.next = r.next
			if l.next >= 0 {
				links[l.next].prev = at
				if next := m.table.find(l.id, links[l.next].id); next != nil {
					q.add(next.rank, at)
				}
			}
			if l.prev >= 0 {
				if next := m.table.find(links[l.prev].id, l.id); next != nil {
					q.add(next.rank, l.prev)
				}
			}
		}
	}
	out := ids[:0]
	for i := int32(0); i >= 0; i = links[i].next {
		out = append(out, links[i].id)
	}
	return out
}
