//go:build !amd64 && !arm64

package pool

// pause does nothing where no instruction for it is known.
func pause() {}
