//go:build !linux

package engine

// memory returns 0, 0: how much memory there is cannot be asked portably.
func memory() (total, free int64) { return 0, 0 }

// processorName returns no name.
func processorName() string { return "" }
