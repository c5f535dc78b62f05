// Command generate turns the .proto files below plugins/proto into Go code, with
// nothing installed but Go: the compiler is a Go library and the two code
// generators are tool dependencies of this module.
//
//	go run ./plugins/proto/generate          write the .pb.go files beside their .proto
//	go run ./plugins/proto/generate -check   change nothing, fail where they differ
//
// It must run inside the module, because "go tool" finds the generators there.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// generators are the protoc plugins to run, by the names "go tool" knows them by.
var generators = []string{"protoc-gen-go", "protoc-gen-go-grpc"}

func main() {
	root := flag.String("root", filepath.Join("plugins", "proto"), "folder that holds the .proto files and that their imports are relative to")
	check := flag.Bool("check", false, "write nothing; fail if a committed file differs from what would be written")
	flag.Parse()
	if err := run(context.Background(), *root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, check bool) error {
	files, err := generate(ctx, root)
	if err != nil {
		return err
	}
	if check {
		return compare(root, files)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(name)), content, 0o644); err != nil {
			return fmt.Errorf("write generated code: %w", err)
		}
	}
	return nil
}

// generate compiles every .proto file below root and returns the generated Go
// files by their slash-separated path below root.
func generate(ctx context.Context, root string) (map[string][]byte, error) {
	sources, err := find(root, ".proto")
	if err != nil {
		return nil, err
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("find .proto files: none below %s; run this from the repository's root", root)
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // carries the comments into the Go code
	}
	compiled, err := compiler.Compile(ctx, sources...)
	if err != nil {
		return nil, fmt.Errorf("compile .proto files: %w", err)
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: sources,
		Parameter:      proto.String("paths=source_relative"),
	}
	added := map[string]bool{}
	for _, file := range compiled {
		request.ProtoFile = appendWithImports(request.ProtoFile, added, file)
	}
	input, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	files := map[string][]byte{}
	for _, generator := range generators {
		response, err := runGenerator(ctx, generator, input)
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", generator, err)
		}
		for _, file := range response.GetFile() {
			if !filepath.IsLocal(filepath.FromSlash(file.GetName())) {
				return nil, fmt.Errorf("run %s: it wants to write %q, outside the folder", generator, file.GetName())
			}
			files[file.GetName()] = []byte(file.GetContent())
		}
	}
	return files, nil
}

// appendWithImports appends a file after everything it imports: a generator
// expects dependencies first.
func appendWithImports(list []*descriptorpb.FileDescriptorProto, added map[string]bool, file protoreflect.FileDescriptor) []*descriptorpb.FileDescriptorProto {
	if added[file.Path()] {
		return list
	}
	added[file.Path()] = true
	for i := range file.Imports().Len() {
		list = appendWithImports(list, added, file.Imports().Get(i).FileDescriptor)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(file))
}

// runGenerator speaks the protoc plugin protocol with one generator: an encoded
// CodeGeneratorRequest on its input, a CodeGeneratorResponse on its output.
func runGenerator(ctx context.Context, name string, input []byte) (*pluginpb.CodeGeneratorResponse, error) {
	command := exec.CommandContext(ctx, "go", "tool", name)
	command.Stdin = bytes.NewReader(input)
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return nil, err
	}
	response := &pluginpb.CodeGeneratorResponse{}
	if err := proto.Unmarshal(output, response); err != nil {
		return nil, fmt.Errorf("decode response: %w", err)
	}
	if response.Error != nil {
		return nil, errors.New(response.GetError())
	}
	return response, nil
}

// compare reports every generated file below root that is missing, differs from
// files, or is left over from a .proto file that is gone.
func compare(root string, files map[string][]byte) error {
	var problems []error
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("read generated code: %w", err))
		case !bytes.Equal(got, want):
			problems = append(problems, fmt.Errorf("%s is not what its .proto file generates", name))
		}
	}
	present, err := find(root, ".pb.go")
	if err != nil {
		return err
	}
	for _, name := range present {
		if _, ok := files[name]; !ok {
			problems = append(problems, fmt.Errorf("%s belongs to no .proto file", name))
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("%w\nrun: make generate", errors.Join(problems...))
	}
	return nil
}

// find lists the files below root whose names end in suffix, sorted, as
// slash-separated paths relative to root.
func find(root, suffix string) ([]string, error) {
	var names []string
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(path.Base(name), suffix) {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", root, err)
	}
	slices.Sort(names)
	return names, nil
}
