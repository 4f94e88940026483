package block

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func TestCheck(t *testing.T) {
	const everything = CanFlush | CanFUA | CanTrim | CanWriteZeroes | CanFastZero
	full := Info{Size: 1 << 20, MinimumBlock: 512, MaximumPayload: 1 << 16, Features: everything}
	bare := Info{Size: 1 << 20, MinimumBlock: 1, MaximumPayload: 1 << 16}
	locked := full
	locked.Features |= ReadOnly
	for _, c := range []struct {
		name           string
		info           Info
		op             Op
		flags          Flags
		offset, length uint64
		want           syscall.Errno
	}{
		{"read", full, Read, 0, 0, 512, 0},
		{"read of the end", full, Read, FUA, 1<<20 - 512, 512, 0},
		{"read over the end", full, Read, 0, 1<<20 - 512, 1024, syscall.EINVAL},
		{"read that wraps", full, Read, 0, 1<<64 - 512, 512, syscall.EINVAL},
		{"read of nothing", full, Read, 0, 0, 0, syscall.EINVAL},
		{"read that is too long", full, Read, 0, 0, 1<<16 + 512, syscall.EINVAL},
		{"read between blocks", full, Read, 0, 1, 512, syscall.EINVAL},
		{"read of half a block", full, Read, 0, 0, 100, syscall.EINVAL},
		{"read without hole", full, Read, NoHole, 0, 512, syscall.EINVAL},
		{"write", full, Write, FUA, 0, 512, 0},
		{"write over the end", full, Write, 0, 1<<20 - 512, 1024, syscall.ENOSPC},
		{"write that wraps", full, Write, 0, math.MaxUint64, math.MaxUint32, syscall.ENOSPC},
		{"write that is fast", full, Write, FastZero, 0, 512, syscall.EINVAL},
		{"write of a locked disk", locked, Write, 0, 0, 512, syscall.EPERM},
		{"trim of a locked disk", locked, Trim, 0, 0, 512, syscall.EPERM},
		{"zeroes of a locked disk", locked, WriteZeroes, 0, 0, 512, syscall.EPERM},
		{"flush of a locked disk", locked, Flush, 0, 0, 0, 0},
		{"flush", full, Flush, FUA, 0, 0, 0},
		{"flush of a range", full, Flush, 0, 0, 512, syscall.EINVAL},
		{"trim of all", full, Trim, FUA, 0, 1 << 20, 0},
		{"trim over the end", full, Trim, 0, 512, 1 << 20, syscall.EINVAL},
		{"trim of far too much", full, Trim, 0, 0, 1 << 63, syscall.EINVAL},
		{"zeroes", full, WriteZeroes, FUA | NoHole | FastZero, 0, 1 << 20, 0},
		{"zeroes over the end", full, WriteZeroes, 0, 512, 1 << 20, syscall.ENOSPC},
		{"durable read of a bare disk", bare, Read, FUA, 0, 1, syscall.EINVAL},
		{"write of a bare disk", bare, Write, 0, 1, 1, 0},
		{"durable write of a bare disk", bare, Write, FUA, 0, 1, syscall.EINVAL},
		{"flush of a bare disk", bare, Flush, 0, 0, 0, syscall.EINVAL},
		{"trim of a bare disk", bare, Trim, 0, 0, 1, syscall.EINVAL},
		{"zeroes of a bare disk", bare, WriteZeroes, 0, 0, 1, syscall.EINVAL},
		{"nothing", full, 0, 0, 0, 512, syscall.EINVAL},
		{"something else", full, 77, 0, 0, 512, syscall.EINVAL},
		{"unknown flag", full, WriteZeroes, 1 << 7, 0, 512, syscall.EINVAL},
	} {
		if got := c.info.Check(c.op, c.flags, c.offset, c.length); got != c.want {
			t.Errorf("%s: errno %d, want %d", c.name, got, c.want)
		}
	}
}

func TestCheckedRangesAreWithinTheDisk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		info := Info{
			Size:           rapid.Int64Range(1, math.MaxInt64).Draw(t, "size"),
			MinimumBlock:   1,
			MaximumPayload: PayloadLimit,
			Features:       CanTrim | CanWriteZeroes,
		}
		op := rapid.SampledFrom([]Op{Read, Write, Trim, WriteZeroes}).Draw(t, "op")
		offset := rapid.Uint64().Draw(t, "offset")
		length := rapid.Uint64().Draw(t, "length")
		if info.Check(op, 0, offset, length) != 0 {
			return
		}
		if end := offset + length; length == 0 || end < offset || end > uint64(info.Size) {
			t.Fatalf("%v of %d bytes at %d of a disk of %d passes", op, length, offset, info.Size)
		}
	})
}

func TestErrno(t *testing.T) {
	for _, c := range []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{syscall.ENOSPC, syscall.ENOSPC},
		{fmt.Errorf("write: %w", syscall.ENOSPC), syscall.ENOSPC},
		{&os.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, syscall.EACCES},
		{fs.ErrPermission, syscall.EPERM},
		{errors.New("no idea"), syscall.EIO},
		{new(Latch).Fail(syscall.ENOSPC), syscall.EIO},
	} {
		if got := Errno(c.err); got != c.want {
			t.Errorf("Errno(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

func TestNamesOfOperations(t *testing.T) {
	for op, want := range map[Op]string{Read: "read", Write: "write", Flush: "flush", Trim: "trim", WriteZeroes: "write zeroes", 0: "unknown operation"} {
		if got := op.String(); got != want {
			t.Errorf("Op(%d).String() = %q, want %q", op, got, want)
		}
	}
}
