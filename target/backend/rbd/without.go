//go:build !rbd || !cgo

package rbd

import "github.com/viablk/viablk/internal/block"

// Open returns ErrNotBuilt.
func Open(Config) (block.Device, error) { return nil, ErrNotBuilt }
