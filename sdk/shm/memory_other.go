//go:build !linux

package shm

import "os"

func createMemory(string, int64) (*os.File, []byte, error) { return nil, nil, ErrUnsupported }

func attachMemory(*os.File) ([]byte, error) { return nil, ErrUnsupported }

func unmapMemory([]byte) error { return nil }
