package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/viablk/viablk/integration/vm/agent"
	"golang.org/x/sys/unix"
)

// modprobe is the command of that name: flags, which say nothing here, a module
// or another name of one, its parameters.
func modprobe(args []string) error {
	args = slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, "-") })
	manifest, err := agent.ReadManifest()
	if err != nil {
		return err
	}
	return load(manifest, strings.Join(args, " "))
}

// load loads a module with its parameters, after the modules that it needs. One
// that is loaded already is no error, nor is one of several of an alias that
// does not work on this processor.
func load(manifest agent.Manifest, line string) error {
	name, parameters, _ := strings.Cut(strings.TrimSpace(line), " ")
	name = strings.ReplaceAll(name, "-", "_")
	found := false
	for _, m := range manifest.Modules {
		alias := func(a string) bool { return strings.ReplaceAll(a, "-", "_") == name }
		if m.Name != name && !slices.ContainsFunc(m.Aliases, alias) {
			continue
		}
		found = true
		for _, needed := range m.Needs {
			if err := load(manifest, needed); err != nil {
				return err
			}
		}
		for _, wanted := range m.Wants {
			if err := load(manifest, wanted); err != nil && !errors.Is(err, unix.ENODEV) {
				return err
			}
		}
		err := insert(m.File, parameters)
		if err != nil && (m.Name == name || !errors.Is(err, unix.ENODEV)) {
			return fmt.Errorf("load module %s: %w", m.Name, err)
		}
	}
	if !found {
		return fmt.Errorf("module %q is not in this machine", name)
	}
	return nil
}

// insert hands a module to the kernel, unless it is part of that.
func insert(path, parameters string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = unix.FinitModule(int(f.Fd()), parameters, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
