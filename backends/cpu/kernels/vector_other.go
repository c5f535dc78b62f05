//go:build !amd64

package kernels

// vector: there are no vector instructions for this processor yet.
const vector = false

func mulBlocks(*weights, *Block, int) float32 { panic("unreachable") }

func mulRowQ8_0(*byte, *Block, int) float32 { panic("unreachable") }

func dotHalves(*int32, *weights, *Block, int) { panic("unreachable") }

func setLevelsVector(*[BlockValues]int8, *byte, *[16]int8) { panic("unreachable") }

func dotLanes(*[lanes]float32, *float32, *float32, int) { panic("unreachable") }
