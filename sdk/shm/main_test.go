package shm

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// peerEnv makes the test binary act as the other process; see process_test.go.
const peerEnv = "STRATA_SHM_TEST_PEER"

func TestMain(m *testing.M) {
	if role := os.Getenv(peerEnv); role != "" {
		if err := peer(role); err != nil {
			fmt.Fprintln(os.Stderr, "peer:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
