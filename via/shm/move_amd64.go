//go:build amd64 && !race

package shm

import "golang.org/x/sys/cpu"

// moveAt is the size, in bytes, from which on the processor's string move is
// better than copy, if it has a fast one. Both take equally long, but a copy of
// 4 KiB leaves the store buffer full, which delays later stores. From moveTo on
// copy is better again, since it bypasses the caches, which the string move of
// some processors does not.
//
//	RDMA Write of 4 KiB, 16 in flight   copy 128 ns   string move 116 ns
//	RDMA Write of 1 MiB on AMD EPYC     copy  72 µs   string move 121 µs
//	RDMA Write of 4 MiB on AMD EPYC     copy 286 µs   string move 479 µs
const (
	moveAt = 2 << 10
	moveTo = 512 << 10
)

// move copies min(len(to), len(from)) bytes.
func move(to, from []byte) {
	n := min(len(to), len(from))
	if n < moveAt || n >= moveTo || !cpu.X86.HasERMS {
		copy(to, from)
		return
	}
	moveString(&to[0], &from[0], uintptr(n))
}

// moveString copies n bytes, upwards, between memory that does not overlap.
//
//go:noescape
func moveString(to, from *byte, n uintptr)
