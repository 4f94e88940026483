//go:build !rbd || !cgo

package rbd

import "github.com/viablk/viablk/internal/block"

// Built reports whether this build has librbd.
const Built = false

// Open returns ErrNotBuilt.
func Open(Config) (block.Device, error) { return nil, ErrNotBuilt }
