//go:build amd64 || arm64

package pool

// pause tells the processor that this thread is spinning, so that it leaves its
// resources to the other thread of the core.
func pause()
