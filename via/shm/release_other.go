//go:build !amd64 || race

package shm

import "sync/atomic"

// storeRelease stores a word after everything that was stored or loaded before.
func storeRelease(word *uint64, v uint64) { atomic.StoreUint64(word, v) }
