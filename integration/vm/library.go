package vm

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// libraries are the shared libraries of packages: the path of each by the name
// by which programs ask for it.
type libraries map[string]string

// librariesOf finds the libraries of packages. Of two with the same name it
// takes that of the first package.
func librariesOf(packages map[string]string) (libraries, error) {
	found := make(libraries)
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		folder := packages[name]
		err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.Contains(d.Name(), ".so") {
				return err
			}
			if _, ok := found[d.Name()]; ok {
				return nil
			}
			if real, err := resolveIn(folder, path); err == nil {
				found[d.Name()] = real
			}
			return nil // else it is a link to what another package has
		})
		if err != nil {
			return nil, fmt.Errorf("look for libraries: %w", err)
		}
	}
	return found, nil
}

// maximumLinks bounds a chain of symbolic links.
const maximumLinks = 10

// resolveIn follows the symbolic links of a path in an unpacked package, where
// absolute ones begin at the package's folder.
func resolveIn(folder, path string) (string, error) {
	for range maximumLinks {
		st, err := os.Lstat(path)
		if err != nil || st.Mode()&fs.ModeSymlink == 0 {
			return path, err
		}
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			path = filepath.Join(folder, target)
		} else {
			path = filepath.Join(filepath.Dir(path), target)
		}
	}
	return "", fmt.Errorf("%s: more than %d symbolic links", path, maximumLinks)
}

// dynamic is what a program or a library asks the dynamic linker for.
type dynamic struct {
	libraries   []string // by name
	interpreter string   // path of the dynamic linker; empty for a library
}

// readDynamic reads what a file asks the dynamic linker for: nothing, if it is
// no ELF file.
func readDynamic(path string) (dynamic, error) {
	f, err := elf.Open(path)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) {
		return dynamic{}, nil
	} else if err != nil {
		return dynamic{}, err
	}
	defer f.Close()
	var d dynamic
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, p.Filesz)
		if _, err := p.ReadAt(text, 0); err != nil {
			return dynamic{}, fmt.Errorf("%s: %w", path, err)
		}
		d.interpreter = strings.TrimRight(string(text), "\x00")
	}
	if d.libraries, err = f.ImportedLibraries(); err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return dynamic{}, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}
