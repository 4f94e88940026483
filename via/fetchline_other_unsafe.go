//go:build !amd64

package via

import "unsafe"

// fetchLine does nothing.
//
// Safety: p is not used.
func fetchLine(unsafe.Pointer) {}
