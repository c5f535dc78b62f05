// Package plugins finds the backend programs that are installed. What starts
// them is in runner, what speaks to them in remote, what keeps them alive in
// supervisor.
package plugins

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Prefix begins the name of every backend's program: the backend "cpu" is the
// program strata-backend-cpu (on Windows with .exe behind it).
const Prefix = "strata-backend-"

// Program is an installed backend program.
type Program struct {
	// Name is the backend's name, e.g. "cpu".
	Name string
	// Path is the program's absolute path.
	Path string
	// Err says why the program must not be started; nil for a usable one.
	Err error
}

// Directories returns where backends are looked for: the configured directory if
// there is one, else the folder backends beside the running program.
func Directories(configured string) ([]string, error) {
	if configured != "" {
		return []string{configured}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the folder of backends: %w", err)
	}
	// Through the link by which the program may have been started, for example
	// from a folder in PATH.
	if self, err = filepath.EvalSymlinks(self); err != nil {
		return nil, fmt.Errorf("find the folder of backends: %w", err)
	}
	return []string{filepath.Join(filepath.Dir(self), "backends")}, nil
}

// List returns the backend programs in the directories, usable or not, in the
// order of the directories and by name within each. A name that occurs in
// several directories means the program in the first of them, as with PATH; the
// others are left out, also where the first is not usable, so that a broken
// installation is seen and not papered over. A directory that does not exist is
// empty.
func List(dirs ...string) ([]Program, error) {
	var found []Program
	seen := make(map[string]bool)
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("look for backends in %s: %w", dir, err)
		}
		entries, err := os.ReadDir(abs)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("look for backends: %w", err)
		}
		unsafe := checkDirectory(abs)
		for _, e := range entries {
			name, ok := backendName(e.Name())
			if !ok || seen[name] {
				continue
			}
			seen[name] = true
			p := Program{Name: name, Path: filepath.Join(abs, e.Name()), Err: unsafe}
			if p.Err == nil {
				p.Err = checkProgram(p.Path)
			}
			found = append(found, p)
		}
	}
	return found, nil
}

// Find returns the usable program of the backend with the given name, as List
// finds it.
func Find(name string, dirs ...string) (Program, error) {
	programs, err := List(dirs...)
	if err != nil {
		return Program{}, err
	}
	var names []string
	for _, p := range programs {
		if p.Name == name && p.Err != nil {
			return Program{}, fmt.Errorf("backend %q: %s cannot be used: %w", name, p.Path, p.Err)
		}
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	where := strings.Join(dirs, ", ")
	if len(names) == 0 {
		return Program{}, fmt.Errorf("backend %q: there is no %s%s in %s, nor any other backend: build them with make build, or set plugins.dir",
			name, Prefix, name, where)
	}
	return Program{}, fmt.Errorf("backend %q: there is no %s%s in %s, only %s", name, Prefix, name, where, strings.Join(names, ", "))
}

// backendName returns the name in a program's file name.
func backendName(file string) (string, bool) {
	name, ok := strings.CutPrefix(file, Prefix)
	if !ok {
		return "", false
	}
	if runtime.GOOS == "windows" {
		if name, ok = strings.CutSuffix(name, ".exe"); !ok {
			return "", false
		}
	}
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return "", false // a backup, a checksum, another system's program
	}
	return name, true
}

// checkProgram says why the file must not be started.
func checkProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("it is not a regular file")
	}
	return checkExecutable(info)
}

// checkDirectory says why no program in the directory must be started.
func checkDirectory(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := checkSafe(info); err != nil {
		return fmt.Errorf("its folder %s: %w", path, err)
	}
	return nil
}
