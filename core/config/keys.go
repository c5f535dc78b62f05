package config

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Keys returns the keys of which requests must carry one: those of APIKeys and
// those of the file. In the file every line is a key; empty lines and those that
// begin with # are left out. A file without keys is an error: it was named to
// protect the server.
func (s *Server) Keys() ([]string, error) {
	if s.APIKeysFile == "" {
		return s.APIKeys, nil
	}
	f, err := os.Open(s.APIKeysFile)
	if err != nil {
		return nil, fmt.Errorf("read keys: %w", err)
	}
	defer f.Close()
	keys := slices.Clone(s.APIKeys)
	lines := bufio.NewScanner(io.LimitReader(f, maxFile))
	before := len(keys)
	for n := 1; lines.Scan(); n++ {
		key := strings.TrimSpace(lines.Text())
		if key == "" || strings.HasPrefix(key, "#") {
			continue
		}
		if !validKey(key) {
			return nil, fmt.Errorf("read keys: line %d of %s is no key: %s", n, s.APIKeysFile, keyRule)
		}
		keys = append(keys, key)
	}
	switch {
	case errors.Is(lines.Err(), bufio.ErrTooLong):
		return nil, fmt.Errorf("read keys: a line of %s is too long for a key", s.APIKeysFile)
	case lines.Err() != nil:
		return nil, fmt.Errorf("read keys: %w", lines.Err())
	case len(keys) == before:
		return nil, fmt.Errorf("read keys: there is no key in %s", s.APIKeysFile)
	}
	return keys, nil
}

// keyRule says what a key is made of: what a header can carry as one word.
const keyRule = "a key has letters, digits and other visible ASCII characters, without spaces"

func validKey(key string) bool {
	for _, c := range []byte(key) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}
