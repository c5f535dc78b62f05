package sampler

// uniform returns a number in [0,1) with 53 random bits that depends on its
// arguments only: Philox 4x32-10 (Salmon et al., "Parallel Random Numbers: As
// Easy as 1, 2, 3", 2011) with the seed as key and (position, choice) as
// counter.
func uniform(seed, choice, position uint64) float64 {
	x := philox([4]uint32{uint32(position), uint32(position >> 32), uint32(choice), uint32(choice >> 32)}, [2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64(uint64(x[0])<<21|uint64(x[1])>>11) / (1 << 53)
}

// philox is the Philox 4x32 block function with ten rounds.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	for range 10 {
		a := uint64(counter[0]) * 0xD2511F53
		b := uint64(counter[2]) * 0xCD9E8D57
		counter = [4]uint32{
			uint32(b>>32) ^ counter[1] ^ key[0], uint32(b),
			uint32(a>>32) ^ counter[3] ^ key[1], uint32(a),
		}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return counter
}
