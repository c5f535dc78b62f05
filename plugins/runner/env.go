package runner

import (
	"runtime"
	"strings"
)

// allowed are the variables of the host that a backend receives: what a program
// needs to run at all, and what its owner sets to choose a device or to debug a
// driver. Everything else, secrets above all, stays in the host.
var allowed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "SHELL",
	"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR",
	// Windows programs do not start or find their libraries without these.
	"SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "TEMP", "TMP", "COMSPEC", "PATHEXT",
	"USERPROFILE", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "NUMBER_OF_PROCESSORS",
}

// allowedPrefixes are families of such variables.
var allowedPrefixes = []string{
	"LC_",
	"GO",               // GOMAXPROCS, GODEBUG, GOTRACEBACK, GOMEMLIMIT, GOCOVERDIR
	"CUDA_", "NVIDIA_", // device choice and driver switches
	"HIP_", "HSA_", "ROCR_", "ROCM_", "AMD_", // the same for AMD
	"GPU_",
}

// hostEnv selects from the host's environment what a backend receives.
func hostEnv(environ []string) []string {
	var env []string
	for _, v := range environ {
		name, _, ok := strings.Cut(v, "=")
		if ok && isAllowed(name) {
			env = append(env, v)
		}
	}
	return env
}

func isAllowed(name string) bool {
	if runtime.GOOS == "windows" {
		name = strings.ToUpper(name) // names have no case there
	}
	for _, a := range allowed {
		if name == a {
			return true
		}
	}
	for _, p := range allowedPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// lastWins drops every variable that is set again later, because programs differ
// in which of two they read.
func lastWins(env []string) []string {
	last := make(map[string]int, len(env))
	key := func(v string) string {
		name, _, _ := strings.Cut(v, "=")
		if runtime.GOOS == "windows" {
			name = strings.ToUpper(name)
		}
		return name
	}
	for i, v := range env {
		last[key(v)] = i
	}
	kept := env[:0]
	for i, v := range env {
		if last[key(v)] == i {
			kept = append(kept, v)
		}
	}
	return kept
}
