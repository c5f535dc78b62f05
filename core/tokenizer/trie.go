package tokenizer

// trie finds added tokens in text. Read-only once built.
type trie struct {
	first [256]bool
	// next leads from (node, byte) to a node; node 0 is the root.
	next map[uint32]int32
	// ids holds the token that ends at each node, or None.
	ids []int32
}

func newTrie() *trie {
	return &trie{next: make(map[uint32]int32), ids: []int32{None}}
}

// add records a token; its text is not empty.
func (t *trie) add(text string, id int32) {
	t.first[text[0]] = true
	node := int32(0)
	for i := 0; i < len(text); i++ {
		key := uint32(node)<<8 | uint32(text[i])
		child, ok := t.next[key]
		if !ok {
			child = int32(len(t.ids))
			t.ids = append(t.ids, None)
			t.next[key] = child
		}
		node = child
	}
	t.ids[node] = id
}

// longest returns the longest token that starts at byte i of s and that ok
// accepts, given the token and where it ends; None where there is none.
func (t *trie) longest(s string, i int, ok func(id int32, end int) bool) (id int32, end int) {
	id = None
	node := int32(0)
	for j := i; j < len(s); j++ {
		child, found := t.next[uint32(node)<<8|uint32(s[j])]
		if !found {
			break
		}
		node = child
		if t.ids[node] >= 0 && ok(t.ids[node], j+1) {
			id, end = t.ids[node], j+1
		}
	}
	return id, end
}
