package sdk_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/strata-engine/strata/sdk"
	"github.com/strata-engine/strata/sdk/sdktest"
)

// backendEnv makes the test binary act as a backend process; see process_test.go.
const backendEnv = "STRATA_SDK_TEST_BACKEND"

func TestMain(m *testing.M) {
	if role := os.Getenv(backendEnv); role != "" {
		sdk.Serve(func(hclog.Logger) (sdk.Backend, error) {
			backend := &sdktest.Echo{Version: "test"}
			if role == "stuck" {
				// Deaf to its context and never off its processor.
				backend.OnStep = func(context.Context, *sdk.StepRequest) error {
					for begin := time.Now(); time.Since(begin) < time.Hour; {
					}
					return nil
				}
			}
			return backend, nil
		})
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
