package vm

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/viablk/viablk/integration/vm/agent"
)

// modules are the modules of a kernel by name, with underscores.
type modules map[string]*module

// module is what a module says of itself.
type module struct {
	Path    string // of the file; empty if it is part of the kernel
	Depends []string
	Before  []string // names or aliases of what should be loaded before it
	Aliases []string // names by which the kernel asks for it; those of devices are left out
}

// companions are modules that others ask for at run time by no name that they
// declare.
var companions = map[string][]string{
	"rdma_rxe": {"crc32_generic"}, // computes the ICRC
}

// indexModules reads every module of an unpacked kernel package. Paths are
// relative to the package.
func indexModules(source string) (modules, error) {
	index := make(modules)
	err := filepath.WalkDir(filepath.Join(source, moduleFolder), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".ko" {
			return err
		}
		m, err := readModule(path)
		if err != nil {
			return fmt.Errorf("read module %s: %w", path, err)
		}
		if m.Path, err = filepath.Rel(source, path); err != nil {
			return err
		}
		index[moduleName(path)] = m
		return nil
	})
	if err != nil {
		return nil, err
	}
	return index, index.addBuiltIn(source)
}

// addBuiltIn adds the modules that are part of the kernel.
func (index modules) addBuiltIn(source string) error {
	lists, err := filepath.Glob(filepath.Join(source, moduleFolder, "*", "modules.builtin"))
	if err != nil {
		return err
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			return err
		}
		for path := range strings.Lines(string(text)) {
			index[moduleName(strings.TrimSpace(path))] = &module{}
		}
	}
	return nil
}

// moduleName returns the name of a module by its file.
func moduleName(path string) string {
	return underscored(strings.TrimSuffix(filepath.Base(path), ".ko"))
}

// decompressModules decompresses the modules of an unpacked package, if it is a
// newer kernel's.
func decompressModules(source string) error {
	var compressed []string
	err := filepath.WalkDir(filepath.Join(source, moduleFolder), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(path, ".ko.xz") {
			compressed = append(compressed, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the package has no modules
	}
	if err != nil {
		return err
	}
	for some := range slices.Chunk(compressed, filesOfCommand) {
		if _, err := run("", "xz", append([]string{"-d", "--"}, some...)...); err != nil {
			return err
		}
	}
	return nil
}

// moduleFolder is where a kernel's package has its modules.
const moduleFolder = "lib/modules"

// filesOfCommand is how many files a command gets as arguments.
const filesOfCommand = 500

// readModule reads the section in which a module describes itself.
func readModule(path string) (*module, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, errors.New("it has no .modinfo")
	}
	text, err := section.Data()
	if err != nil {
		return nil, err
	}
	return parseModule(string(text)), nil
}

// parseModule reads the lines, each ended by a zero, of a .modinfo section.
func parseModule(text string) *module {
	m := &module{}
	for line := range strings.SplitSeq(text, "\x00") {
		key, value, _ := strings.Cut(line, "=")
		switch {
		case key == "depends" && value != "":
			for name := range strings.SplitSeq(value, ",") {
				m.Depends = append(m.Depends, underscored(name))
			}
		case key == "alias" && !strings.Contains(value, ":"):
			m.Aliases = append(m.Aliases, value)
		case key == "softdep":
			before, _, _ := strings.Cut(value, "post:")
			m.Before = append(m.Before, strings.Fields(strings.TrimPrefix(before, "pre:"))...)
		}
	}
	return m
}

func underscored(name string) string { return strings.ReplaceAll(name, "-", "_") }

// closure returns modules and all that they need or want.
func (index modules) closure(names []string) ([]agent.Module, error) {
	var closed []agent.Module
	done := make(map[string]bool)
	var add func(name string) error
	add = func(name string) error {
		name = underscored(name)
		m, ok := index[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s", name)
		}
		if done[name] {
			return nil
		}
		done[name] = true
		c := agent.Module{
			Name: name, Needs: slices.Concat(m.Depends, companions[name]), Aliases: m.Aliases,
		}
		if m.Path != "" {
			c.File = "/usr/lib/modules/" + name + ".ko"
		}
		for _, alias := range m.Before {
			c.Wants = append(c.Wants, index.named(alias)...)
		}
		closed = append(closed, c)
		for _, other := range slices.Concat(c.Needs, c.Wants) {
			if err := add(other); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return closed, nil
}

// named returns the modules of a name or an alias; none if it is part of the
// kernel.
func (index modules) named(alias string) []string {
	if _, ok := index[underscored(alias)]; ok {
		return []string{underscored(alias)}
	}
	var found []string
	for name, m := range index {
		if slices.Contains(m.Aliases, alias) {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return found
}
