package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/testdata"
)

const (
	module   = "github.com/strata-engine/strata"
	goPlugin = "github.com/hashicorp/go-plugin"
	purego   = "github.com/ebitengine/purego"
)

// listed is what "go list -json" tells about a package.
type listed struct {
	ImportPath string
	Name       string
	Standard   bool
	Imports    []string // named by its files, without tests
	Deps       []string // the same, followed to the end
}

// importRule says what packages in one part of the tree must not reach. Paths
// are relative to the module and stand for everything below them too.
type importRule struct {
	where []string // the packages the rule is for, all where empty
	but   []string // packages below where that it is not for
	never []string // what they must not reach; "" is the whole module
	only  []string // what below never they may reach all the same
	why   string
}

var importRules = []importRule{
	{
		where: []string{"core"},
		never: []string{"plugins", "sdk", "backends", "cmd"},
		only:  []string{"sdk/shm", "sdk/quant"},
		why:   "core knows no process and no device; of sdk it shares the leaves sdk/shm and sdk/quant",
	},
	{
		where: []string{"core"},
		never: []string{goPlugin},
		why:   "core knows no process",
	},
	{
		where: []string{"sdk"},
		never: []string{""},
		only:  []string{"sdk", "plugins/proto"},
		why:   "a third party's backend must not pull the server in",
	},
	{
		where: []string{"sdk/shm", "sdk/quant"},
		never: []string{""},
		only:  []string{"sdk/shm", "sdk/quant"},
		why:   "sdk/shm and sdk/quant are leaves, because core imports them",
	},
	{
		where: []string{"plugins"},
		never: []string{""},
		only:  []string{"plugins", "core", "sdk"},
		why:   "the host's side of the boundary imports core, sdk and the protocol",
	},
	{
		where: []string{"plugins/proto"},
		never: []string{""},
		only:  []string{"plugins/proto"},
		why:   "the protocol is a leaf, because sdk imports it",
	},
	{
		where: []string{"backends/cpu"},
		never: []string{""},
		only:  []string{"backends/cpu", "sdk", "plugins/proto"},
		why:   "a backend stands on sdk alone, as a third party's would",
	},
	{
		where: []string{"backends/cuda"},
		never: []string{""},
		only:  []string{"backends/cuda", "backends/internal/gpu", "sdk", "plugins/proto"},
		why:   "a backend stands on sdk alone, as a third party's would",
	},
	{
		where: []string{"backends/hip"},
		never: []string{""},
		only:  []string{"backends/hip", "backends/internal/gpu", "sdk", "plugins/proto"},
		why:   "a backend stands on sdk alone, as a third party's would",
	},
	{
		where: []string{"backends/internal"},
		never: []string{""},
		only:  []string{"backends/internal", "sdk", "plugins/proto"},
		why:   "a backend stands on sdk alone, as a third party's would",
	},
	{
		but:   []string{"backends/cuda", "backends/hip", "cmd/strata-peer"},
		never: []string{purego},
		why:   "only the GPU backends and the peer benchmark load foreign libraries",
	},
	{
		but:   []string{"testdata", "cmd/internal/parity"},
		never: []string{"testdata"},
		why:   "recorded references are for tests and for the package that compares with them",
	},
}

// badNames say nothing about what a package holds.
var badNames = []string{"util", "utils", "common", "types"}

// topLevel are the folders that may stand in the root, and backends those that
// may stand in backends. Hidden folders, and bin, which make build creates, are
// not part of the layout.
var (
	topLevel = []string{"backends", "cmd", "core", "docs", "models", "plugins", "sdk", "testdata"}
	backends = []string{"cpu", "cuda", "hip", "internal"}
)

// below reports whether an import path is root or stands below it; root is
// relative to the module unless it names another one.
func below(importPath, root string) bool {
	if root == "" {
		root = module
	} else if !strings.Contains(strings.SplitN(root, "/", 2)[0], ".") {
		root = module + "/" + root
	}
	return importPath == root || strings.HasPrefix(importPath, root+"/")
}

func belowAny(importPath string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return below(importPath, root) })
}

// violations returns what one package of this module does against the rules, one
// sentence each. standard tells packages of the standard library.
func violations(p listed, standard func(importPath string) bool) []string {
	var found []string
	for _, rule := range importRules {
		if len(rule.where) > 0 && !belowAny(p.ImportPath, rule.where) || belowAny(p.ImportPath, rule.but) {
			continue
		}
		for _, dep := range p.Deps {
			if belowAny(dep, rule.never) && !belowAny(dep, rule.only) {
				found = append(found, fmt.Sprintf("%s reaches %s: %s", p.ImportPath, dep, rule.why))
			}
		}
	}
	if p.ImportPath == module+"/core" {
		for _, name := range p.Imports {
			if !standard(name) {
				found = append(found, fmt.Sprintf("%s imports %s: the root of core imports the standard library only", p.ImportPath, name))
			}
		}
	}
	if slices.Contains(badNames, p.Name) || slices.Contains(badNames, path.Base(p.ImportPath)) {
		found = append(found, fmt.Sprintf("%s is named %s: name a package after what it holds", p.ImportPath, p.Name))
	}
	return found
}

// list asks the go command for every package of the module, and all they reach,
// as built for one system.
func list(t *testing.T, system string) []listed {
	t.Helper()
	goos, goarch, _ := strings.Cut(system, "/")
	command := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Name,Standard,Imports,Deps", "./...", "./testdata")
	command.Dir = testdata.Root(t)
	command.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	output, err := command.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w\n%s", err, exit.Stderr)
		}
		t.Fatalf("list packages for %s: %v", system, err)
	}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p listed
		if err := decoder.Decode(&p); err == io.EOF {
			return packages
		} else if err != nil {
			t.Fatalf("list packages for %s: %v", system, err)
		}
		packages = append(packages, p)
	}
}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	for _, system := range []string{"linux/amd64", "linux/arm64", "windows/amd64", "darwin/arm64"} {
		packages := list(t, system)
		standard := map[string]bool{}
		for _, p := range packages {
			standard[p.ImportPath] = p.Standard
		}
		for _, p := range packages {
			if !below(p.ImportPath, "") {
				continue
			}
			for _, violation := range violations(p, func(name string) bool { return standard[name] }) {
				if !seen[violation] {
					seen[violation] = true
					t.Errorf("%s (on %s)", violation, system)
				}
			}
		}
	}
}

func TestImportRules(t *testing.T) {
	own := func(name string) string { return module + "/" + name }
	for name, test := range map[string]struct {
		path, pkg string
		imports   []string
		deps      []string
		want      int // violations
	}{
		"core root, std":               {path: "core", imports: []string{"context"}, deps: []string{"context"}},
		"core root, other module":      {path: "core", imports: []string{"golang.org/x/sys/unix"}, want: 1},
		"core root, own package":       {path: "core", imports: []string{own("core/kv")}, deps: []string{own("core/kv")}, want: 1},
		"core below, other module":     {path: "core/api", imports: []string{"golang.org/x/sync/errgroup"}},
		"core, leaves":                 {path: "core/kv", deps: []string{own("sdk/shm"), own("sdk/quant"), own("core")}},
		"core, package below a leaf":   {path: "core/kv", deps: []string{own("sdk/quant/grid")}},
		"core, name that starts alike": {path: "core/kv", deps: []string{own("sdk/shmem")}, want: 1},
		"core, sdk root":               {path: "core/kv", deps: []string{own("sdk")}, want: 1},
		"core, plugins":                {path: "core/engine", deps: []string{own("plugins/remote")}, want: 1},
		"core, protocol":               {path: "core/engine", deps: []string{own("plugins/proto/strata/backend/v1alpha1")}, want: 1},
		"core, go-plugin":              {path: "core/engine", deps: []string{goPlugin + "/runner"}, want: 1},
		"core, backend and cmd":        {path: "core/engine", deps: []string{own("backends/cpu/engine"), own("cmd/strata")}, want: 2},
		"sdk, protocol and go-plugin":  {path: "sdk", deps: []string{own("plugins/proto/strata/backend/v1alpha1"), goPlugin}},
		"sdk, core":                    {path: "sdk/arch", deps: []string{own("core")}, want: 1},
		"sdk, plugins":                 {path: "sdk", deps: []string{own("plugins/supervisor")}, want: 1},
		"leaf, sdk":                    {path: "sdk/quant", deps: []string{own("sdk/ops")}, want: 1},
		"plugins, core and sdk":        {path: "plugins/remote", deps: []string{own("core"), own("sdk"), own("plugins/proto")}},
		"plugins, backend":             {path: "plugins/remote", deps: []string{own("backends/cpu/engine")}, want: 1},
		"protocol, core":               {path: "plugins/proto/strata/backend/v1alpha1", deps: []string{own("core")}, want: 1},
		"cpu, sdk":                     {path: "backends/cpu", deps: []string{own("sdk/ops"), own("plugins/proto"), own("backends/cpu/engine")}},
		"cpu, core":                    {path: "backends/cpu/engine", deps: []string{own("core/model")}, want: 1},
		"cpu, plugins":                 {path: "backends/cpu", deps: []string{own("plugins/runner")}, want: 1},
		"cpu, gpu code":                {path: "backends/cpu", deps: []string{own("backends/internal/gpu")}, want: 1},
		"cuda, gpu code":               {path: "backends/cuda", deps: []string{own("backends/internal/gpu"), purego}},
		"hip, cuda":                    {path: "backends/hip/stage", deps: []string{own("backends/cuda/driver")}, want: 1},
		"gpu code, cuda":               {path: "backends/internal/gpu", deps: []string{own("backends/cuda/driver")}, want: 1},
		"purego, peer benchmark":       {path: "cmd/strata-peer", deps: []string{purego}},
		"purego, host":                 {path: "cmd/strata", deps: []string{purego}, want: 1},
		"purego, cpu":                  {path: "backends/cpu", deps: []string{purego}, want: 1},
		"cmd wires all":                {path: "cmd/strata", deps: []string{own("core/api"), own("plugins"), own("sdk/shm"), goPlugin}},
		"cmd, recorded references":     {path: "cmd/strata", deps: []string{own("testdata")}, want: 1},
		"package named util":           {path: "core/util", want: 1},
		"package name common":          {path: "core/shared", pkg: "common", want: 1},
		"package named types":          {path: "sdk/types", want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := listed{ImportPath: own(test.path), Name: path.Base(test.path), Imports: test.imports, Deps: test.deps}
			if test.pkg != "" {
				p.Name = test.pkg
			}
			got := violations(p, func(name string) bool { return !strings.Contains(name, ".") })
			if len(got) != test.want {
				t.Errorf("%d violations, want %d:\n%s", len(got), test.want, strings.Join(got, "\n"))
			}
		})
	}
}

// surplus returns the folders of fsys at dir that are not allowed there.
func surplus(fsys fs.FS, dir string, allowed []string) ([]string, error) {
	entries, err := fs.ReadDir(fsys, dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() && !strings.HasPrefix(name, ".") && !slices.Contains(allowed, name) {
			found = append(found, path.Join(dir, name))
		}
	}
	return found, nil
}

func TestLayout(t *testing.T) {
	root := os.DirFS(testdata.Root(t))
	for dir, allowed := range map[string][]string{".": append([]string{"bin"}, topLevel...), "backends": backends} {
		found, err := surplus(root, dir, allowed)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range found {
			t.Errorf("%s has no place in the layout: %s holds %s", name, dir, strings.Join(allowed, ", "))
		}
	}
	for _, name := range append(slices.Clone(topLevel), "backends/cpu") {
		if _, err := fs.Stat(root, name+"/README.md"); err != nil {
			t.Errorf("%s does not say what it holds: %v", name, err)
		}
	}
}

func TestLayoutRule(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"core/kv", "internal/x", ".git", "backends/cpu", "backends/vulkan"} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for dir, test := range map[string]struct{ allowed, want []string }{
		".":        {topLevel, []string{"internal"}},
		"backends": {backends, []string{"backends/vulkan"}},
	} {
		got, err := surplus(os.DirFS(root), dir, test.allowed)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
}

// importsC reports whether a Go file needs cgo. It reads the text and not the
// package, because without cgo the go command hides such files.
func importsC(name string, source []byte) (bool, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ImportsOnly)
	if err != nil {
		return false, err
	}
	for _, spec := range file.Imports {
		if spec.Path.Value == `"C"` {
			return true, nil
		}
	}
	return false, nil
}

func TestNoCgo(t *testing.T) {
	root := testdata.Root(t)
	for _, name := range files(t, root, ".go") {
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if c, err := importsC(name, source); err != nil {
			t.Error(err)
		} else if c {
			t.Errorf("%s imports C: Strata builds with no compiler but Go's", name)
		}
	}
}

func TestNoCgoRule(t *testing.T) {
	for name, test := range map[string]struct {
		source string
		want   bool
	}{
		"none":       {"package p\nimport \"os\"\n", false},
		"plain":      {"package p\nimport \"C\"\n", true},
		"in a group": {"//go:build cgo\n\npackage p\n\nimport (\n\t\"os\"\n\t\"C\"\n)\n", true},
		"in a text":  {"package p\nconst s = `import \"C\"`\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := importsC("p.go", []byte(test.source)); err != nil || got != test.want {
				t.Errorf("got %v, %v, want %v", got, err, test.want)
			}
		})
	}
}

// files lists the repository's files with a suffix, as paths relative to root,
// leaving out hidden folders and what tools put there.
func files(t *testing.T, root, suffix string) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasPrefix(name, ".") && name != "." || name == "bin" || entry.Name() == "node_modules") {
			return fs.SkipDir
		}
		if !entry.IsDir() && strings.HasSuffix(name, suffix) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("list files: %v", err)
	}
	if len(names) == 0 {
		t.Fatalf("list files: no %s file below %s", suffix, root)
	}
	return names
}
