package backendtest

import (
	"bytes"
	"syscall"

	"github.com/viablk/viablk/internal/block"
)

const enotsup = syscall.ENOTSUP

// info checks that a disk describes itself sensibly, and always the same.
func (k *kit) info() {
	d := k.device()
	i := d.Info()
	powerOfTwo := func(n uint32) bool { return n > 0 && n&(n-1) == 0 }
	switch {
	case i.Size <= 0:
		k.Errorf("Size is %d", i.Size)
	case !powerOfTwo(i.MinimumBlock) || i.MinimumBlock > 1<<16:
		k.Errorf("MinimumBlock is %d, not a power of two up to 64 KiB", i.MinimumBlock)
	case i.Size%int64(i.MinimumBlock) != 0:
		k.Errorf("Size %d is not a multiple of MinimumBlock %d", i.Size, i.MinimumBlock)
	case !powerOfTwo(i.PreferredBlock) || i.PreferredBlock < max(i.MinimumBlock, 512):
		k.Errorf("PreferredBlock is %d, not a power of two of at least 512 and MinimumBlock", i.PreferredBlock)
	case i.MaximumPayload < 1<<20 || i.MaximumPayload%i.MinimumBlock != 0 || i.MaximumPayload < i.PreferredBlock:
		k.Errorf("MaximumPayload is %d", i.MaximumPayload)
	}
	o := k.owner(d, 1)
	k.read(o, 0, int(grain(i)))
	if again := d.Info(); again != i {
		k.Errorf("Info changes from %+v to %+v", i, again)
	}
	for _, depth := range []int{-1, 0, block.MaximumDepth + 1} {
		if q, err := d.NewQueue(depth); err == nil {
			k.Errorf("a queue of depth %d opens", depth)
			_ = q.Close()
		}
	}
	k.owner(d, block.MaximumDepth)
}

// features checks that what is claimed works and that the rest is refused.
func (k *kit) features() {
	d := k.device()
	o := k.owner(d, 2)
	i := d.Info()
	n := max(4096, grain(i))
	claimed := func(f block.Features, op block.Op, flags block.Flags) bool {
		length := uint64(n)
		if op == block.Flush {
			length = 0
		}
		e := i.Check(op, flags, 0, length)
		if i.Features&f != 0 {
			if e != 0 {
				k.Errorf("Check refuses %v, flags %b, which the disk can do: %v", op, flags, e)
			}
			return e == 0
		}
		if e != syscall.EINVAL {
			k.Errorf("Check of %v, flags %b, which the disk cannot do: %v, want EINVAL", op, flags, e)
		}
		return false
	}
	data := pattern(make([]byte, n), 5)
	k.write(o, data, 0, 0)
	if claimed(block.CanFlush, block.Flush, 0) {
		k.must(o, &block.Request{Op: block.Flush})
	}
	if claimed(block.CanFUA, block.Write, block.FUA) {
		k.write(o, data, 0, block.FUA)
	}
	if claimed(block.CanTrim, block.Trim, 0) {
		k.must(o, &block.Request{Op: block.Trim, Length: n})
		k.read(o, 0, int(n)) // anything, but no error
		k.write(o, data, 0, 0)
	}
	if claimed(block.CanFastZero, block.WriteZeroes, block.FastZero) {
		k.fastZero(o, data, block.FastZero)
		k.fastZero(o, data, block.FastZero|block.NoHole)
	}
	if claimed(block.CanWriteZeroes, block.WriteZeroes, 0) {
		for _, flags := range []block.Flags{0, block.NoHole} {
			k.write(o, data, 0, 0)
			k.must(o, &block.Request{Op: block.WriteZeroes, Flags: flags, Length: n})
			if !bytes.Equal(k.read(o, 0, int(n)), make([]byte, n)) {
				k.Errorf("WriteZeroes, flags %b, leaves something else", flags)
			}
		}
	}
}

// fastZero checks that FastZero zeroes or refuses, and refuses without a trace.
func (k *kit) fastZero(o *owner, data []byte, flags block.Flags) {
	k.Helper()
	k.write(o, data, 0, 0)
	want := make([]byte, len(data))
	err := o.run(&block.Request{Op: block.WriteZeroes, Flags: flags, Length: int64(len(data))})
	if err != nil {
		if block.Errno(err) != enotsup {
			k.Errorf("FastZero: %v, want success or ENOTSUP", err)
		}
		if !k.options.Forgets {
			want = data
		}
	}
	if !bytes.Equal(k.read(o, 0, len(data)), want) {
		k.Errorf("FastZero answers %v and leaves something else", err)
	}
}

// readOnly checks that a read-only disk refuses writes, and only these.
func (k *kit) readOnly() {
	d := k.device()
	i := d.Info()
	n := uint64(grain(i))
	want := syscall.Errno(0)
	if i.Features&block.ReadOnly != 0 {
		want = syscall.EPERM
	}
	for _, op := range []block.Op{block.Write, block.Trim, block.WriteZeroes} {
		e := i.Check(op, 0, 0, n)
		if want == syscall.EPERM && e != want || op == block.Write && e != want {
			k.Errorf("Check of %v: %v, want %v", op, e, want)
		}
	}
	o := k.owner(d, 1)
	k.read(o, 0, int(n))
	if i.Features&block.CanFlush != 0 {
		k.must(o, &block.Request{Op: block.Flush})
	}
}

// fields checks that the queue leaves alone what is not its own.
func (k *kit) fields() {
	d := k.device()
	o := k.owner(d, 1)
	n := int(max(4096, grain(d.Info())))
	data := pattern(make([]byte, n), 8)
	w := &block.Request{Op: block.Write, Offset: int64(n), Length: int64(n), Data: bytes.Clone(data), User: 1 << 63}
	k.must(o, w)
	if !bytes.Equal(w.Data, data) {
		k.Error("a write changes its payload")
	}
	o.queue.Release(w)
	if w.Data == nil {
		k.Error("Release takes the caller's memory away")
	}
	around := make([]byte, 3*n)
	pattern(around, 9)
	before := bytes.Clone(around)
	r := &block.Request{Op: block.Read, Offset: int64(n), Length: int64(n), Data: around[n : 2*n], User: 7}
	k.must(o, r)
	if !bytes.Equal(around[:n], before[:n]) || !bytes.Equal(around[2*n:], before[2*n:]) {
		k.Error("a read writes outside of its memory")
	}
	if &r.Data[0] != &around[n] || !k.options.Forgets && !bytes.Equal(r.Data, data) {
		k.Error("a read does not fill the memory it was given")
	}
	if w.User != 1<<63 || r.User != 7 || w.Op != block.Write || w.Offset != int64(n) || w.Length != int64(n) {
		k.Errorf("the queue changes a write with User 1<<63 to a %v at %d of %d bytes, User %#x", w.Op, w.Offset, w.Length, w.User)
	}
	// A request is used again without being made anew.
	for i := range 3 {
		w.Offset = int64(i * n)
		k.must(o, w)
	}
}
