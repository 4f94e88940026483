//go:build !verbs || !cgo

package verbs

import "github.com/viablk/viablk/via"

// Built reports whether this build has the provider.
const Built = false

// Devices returns ErrNotBuilt.
func Devices() ([]Device, error) { return nil, ErrNotBuilt }

func (*Provider) open(string) (via.Adapter, error) { return nil, ErrNotBuilt }
