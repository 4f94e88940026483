//go:build !amd64 || race

package shm

// move copies as many bytes as both have.
func move(to, from []byte) { copy(to, from) }
