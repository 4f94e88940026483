//go:build !amd64

package shm

import "unsafe"

// fetchLine does nothing.
//
// Safety: p is not used.
func fetchLine(unsafe.Pointer) {}
