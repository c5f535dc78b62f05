package tokenizer

// A byte-level vocabulary spells bytes as printable characters (Radford et al.,
// "Language Models are Unsupervised Multitask Learners", 2019): printable Latin-1
// bytes stand for themselves, the other 68 become U+0100 and up in order.

// byteRunes maps a byte to the character that spells it, runeBytes back.
var byteRunes, runeBytes = func() ([256]rune, map[rune]byte) {
	var runes [256]rune
	back := make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE
		if printable {
			runes[b] = rune(b)
		} else {
			runes[b] = next
			next++
		}
		back[runes[b]] = byte(b)
	}
	return runes, back
}()

// spelledBytes returns the bytes that a vocabulary entry spells. An entry with a
// character that spells no byte stands for its own UTF-8 and is not ok: text is
// never encoded to it.
func spelledBytes(token string) (b []byte, ok bool) {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := runeBytes[r]
		if !ok {
			return []byte(token), false
		}
		out = append(out, b)
	}
	return out, true
}
