package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const echo = `syntax = "proto3";
package strata.echo.v1;
option go_package = "example.org/echo/v1;echov1";
import "google/protobuf/empty.proto";

// Echo answers.
service Echo {
  // Say sends it back.
  rpc Say(Text) returns (google.protobuf.Empty);
}

// Text is one line.
message Text {
  optional string line = 1;
}
`

func write(t *testing.T, root, name, content string) {
	t.Helper()
	path := filepath.Join(root, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestGenerate(t *testing.T) {
	root := t.TempDir()
	write(t, root, "strata/echo/v1/echo.proto", echo)
	if err := run(t.Context(), root, false); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"strata/echo/v1/echo.pb.go":      "// Text is one line.\ntype Text struct {",
		"strata/echo/v1/echo_grpc.pb.go": "// Say sends it back.\n\tSay(ctx context.Context, in *Text",
	} {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(got), want) {
			t.Errorf("%s does not hold %q", name, want)
		}
	}

	check := func(change string, want ...string) {
		t.Helper()
		err := run(t.Context(), root, true)
		if len(want) == 0 {
			if err != nil {
				t.Errorf("%s: %v", change, err)
			}
			return
		}
		for _, want := range want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: check says %v, want %q", change, err, want)
			}
		}
	}
	check("freshly generated")
	write(t, root, "strata/echo/v1/echo.proto", strings.Replace(echo, "optional string line", "optional string row", 1))
	check("renamed field", "strata/echo/v1/echo.pb.go is not what its .proto file generates")
	write(t, root, "strata/echo/v1/echo.proto", echo)
	write(t, root, "strata/gone/v1/gone.pb.go", "package gonev1\n")
	check("deleted .proto", "strata/gone/v1/gone.pb.go belongs to no .proto file")
}

func TestGenerateRefuses(t *testing.T) {
	for name, test := range map[string]struct{ source, want string }{
		"no files":     {"", "none below"},
		"syntax error": {"syntax = \"proto3\";\nmessage {}\n", "bad.proto:2:9"},
		"no import":    {"syntax = \"proto3\";\nimport \"absent.proto\";\n", "absent.proto"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if test.source != "" {
				write(t, root, "bad.proto", test.source)
			}
			err := run(t.Context(), root, false)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
