// Command strata runs and serves mixture-of-experts language models. It wires
// the parts together; every command has a file of its own.
package main

import "os"

// version is set by the linker.
var version = "unknown"

func main() {
	p := program{in: os.Stdin, out: os.Stdout, err: os.Stderr, environ: os.Environ()}
	os.Exit(p.run(os.Args[1:]))
}
