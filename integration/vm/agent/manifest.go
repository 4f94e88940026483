package agent

import (
	"encoding/json"
	"fmt"
	"os"
)

// ManifestPath is where the guest finds its manifest.
const ManifestPath = "/etc/viablk-vm.json"

// Manifest is what the harness tells a guest before it boots.
type Manifest struct {
	Load    []string // modules to load at boot, each with its parameters behind it
	Modules []Module // all that the guest has
	// what becomes the first process in place of the guest; empty for nothing
	Init string
}

// Module is a kernel module.
type Module struct {
	Name    string   // with underscores
	File    string   // in the guest; empty if it is part of the kernel
	Needs   []string // modules without which it does not load
	Wants   []string // modules that it does without where they do not work
	Aliases []string // other names by which the kernel asks for it
}

// ReadManifest reads the manifest of this guest.
func ReadManifest() (Manifest, error) {
	var m Manifest
	text, err := os.ReadFile(ManifestPath)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return Manifest{}, fmt.Errorf("read the manifest: %w", err)
	}
	return m, nil
}
