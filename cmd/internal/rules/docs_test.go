package rules

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/strata-engine/strata/testdata"
)

// selfEvident are methods whose meaning the standard library fixes.
var selfEvident = []string{"Error", "Unwrap", "String"}

// undocumented returns the exported names of a file that have no comment:
// types, functions, constants, variables, methods of exported types, and the
// fields and methods that exported structs and interfaces declare. A constant
// or variable may rely on its group's comment, fields or constants that stand
// together without a blank line may share the comment above the first, and a
// struct written on one line is described by the comment above it. The methods
// of error and fmt.Stringer need none.
func undocumented(fset *token.FileSet, file *ast.File) []string {
	var found []string
	report := func(name *ast.Ident, owner string) {
		if name.IsExported() {
			found = append(found, fmt.Sprintf("%d: %s%s", fset.Position(name.Pos()).Line, owner, name.Name))
		}
	}
	members := func(owner *ast.Ident, documented bool, list *ast.FieldList) {
		covered, end := documented, fset.Position(owner.Pos()).Line-1
		for _, field := range list.List {
			start := fset.Position(field.Pos()).Line
			covered = field.Doc != nil || covered && start == end+1
			end = fset.Position(field.End()).Line
			if covered || field.Comment != nil {
				continue
			}
			for _, name := range field.Names { // none where embedded
				report(name, owner.Name+".")
			}
		}
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			if d.Doc != nil {
				continue
			}
			if d.Recv == nil {
				report(d.Name, "")
			} else if slices.Contains(selfEvident, d.Name.Name) {
				continue
			} else if owner := receiver(d.Recv.List[0].Type); ast.IsExported(owner) {
				report(d.Name, owner+".")
			}
		case *ast.GenDecl:
			covered, end := false, -1
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					documented := d.Doc != nil || s.Doc != nil
					if !documented {
						report(s.Name, "")
					}
					if !s.Name.IsExported() {
						continue
					}
					switch body := s.Type.(type) {
					case *ast.StructType:
						members(s.Name, documented, body.Fields)
					case *ast.InterfaceType:
						members(s.Name, documented, body.Methods)
					}
				case *ast.ValueSpec:
					start := fset.Position(s.Pos()).Line
					covered = s.Doc != nil || covered && start == end+1
					end = fset.Position(s.End()).Line
					if d.Doc != nil || covered || s.Comment != nil {
						continue
					}
					for _, name := range s.Names {
						report(name, "")
					}
				}
			}
		}
	}
	return found
}

// receiver returns the name of the type a method belongs to.
func receiver(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestExportedNamesAreDocumented(t *testing.T) {
	root := testdata.Root(t)
	undescribed := map[string]bool{} // packages without a package comment so far
	for _, name := range files(t, root, ".go") {
		if !strings.HasPrefix(name, "core/") && !strings.HasPrefix(name, "sdk/") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		source, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(fset, name, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		dir := path.Dir(name)
		if _, seen := undescribed[dir]; !seen || file.Doc != nil {
			undescribed[dir] = file.Doc == nil
		}
		for _, place := range undocumented(fset, file) {
			t.Errorf("%s:%s has no comment", name, place)
		}
	}
	for dir, missing := range undescribed {
		if missing {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

func TestUndocumentedRule(t *testing.T) {
	const source = `// Package p is an example.
package p

// Good is documented.
type Good struct {
	// A and B share a comment.
	A int
	B int

	C int
	D int // D has its own.
	e int
	Good2
}

type Bad interface {
	// M is documented.
	M()

	N()
}

type hidden struct{ X int }

// Short has one field, X.
type Short struct{ X int }

type Terse struct{ X int }

func (hidden) Method() {}

func (*Good) Method() {}

func (*Good) Error() string { return "" }

func String() {}

// Documented is a generic type.
type Documented[T any] struct{}

func (d *Documented[T]) Get() {}

func F() {}

// G is documented.
func G() {}

// A group.
const (
	One = 1
	Two = 2
)

const (
	// Three and Four share a comment.
	Three = 3
	Four  = 4

	Five = 5
	six  = 6
)

var Seven, eight = 7, 8
`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"10: Good.C", "16: Bad", "20: Bad.N", "28: Terse", "28: Terse.X", "32: Good.Method", "36: String", "41: Documented.Get", "43: F", "59: Five", "63: Seven"}
	if diff := cmp.Diff(want, undocumented(fset, file)); diff != "" {
		t.Errorf("undocumented names (-want +got):\n%s", diff)
	}
}
