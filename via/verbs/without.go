//go:build !verbs || !cgo

package verbs

import "github.com/viablk/viablk/via"

// Devices returns ErrNotBuilt.
func Devices() ([]Device, error) { return nil, ErrNotBuilt }

func (*Provider) open(string) (via.Adapter, error) { return nil, ErrNotBuilt }
