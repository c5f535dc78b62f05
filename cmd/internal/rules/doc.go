// Package rules holds the tests that keep the repository in shape: which package
// may import which, where a folder may stand, that exported names are documented
// and that links between documents lead somewhere. It has no code to import.
//
// The rules bind what is compiled into a program or into somebody else's
// backend. Test files are free to import across the lines, because a numeric
// test of sdk or of a backend needs the file parser that core owns.
package rules
