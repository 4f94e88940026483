//go:build amd64 && !race

package shm

// storeRelease stores a word after everything that was stored or loaded before,
// as every store of this architecture does. sync/atomic has only stores that
// are also ordered before later loads: those wait until all earlier stores have
// reached the cache.
//
//go:noescape
func storeRelease(word *uint64, v uint64)
