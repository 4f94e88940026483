//go:build !amd64 || race

package via

import "sync/atomic"

// storeRelease stores a word after everything that was stored or loaded before.
func storeRelease(word *uint32, v uint32) { atomic.StoreUint32(word, v) }
