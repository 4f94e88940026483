package backendtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/viablk/viablk/internal/block"
)

// region is how much of a disk the random cases use, in bytes.
const region = 4 << 20

// model runs random operations one at a time and compares with plain memory.
func (k *kit) model() {
	d := k.device()
	o := k.owner(d, 4)
	info := d.Info()
	base := info.Size - region // the end of the disk is in
	m := &modelDisk{kit: k, info: info, base: base, want: make([]byte, region), known: make([]byte, region)}
	for seed := range uint64(3) {
		random := rand.New(rand.NewPCG(seed, 0))
		for step := range 150 {
			if err := m.step(o, random); err != nil {
				k.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
	}
}

// certain is content that is known, for [modelDisk].
var certain = bytes.Repeat([]byte{1}, region)

// modelDisk is what the disk should contain.
type modelDisk struct {
	*kit
	info  block.Info
	base  int64
	want  []byte
	known []byte // 0 where the content is undefined, otherwise 1
}

// span draws a range, often at an edge.
func (m *modelDisk) span(random *rand.Rand) (off, n int64) {
	g := grain(m.info)
	n = 512 << random.IntN(12) // up to 1 MiB
	if random.IntN(2) == 0 {
		n -= random.Int64N(n / 2)
	}
	n = max(g, n&^(g-1))
	off = random.Int64N(region-n+1) &^ (g - 1)
	switch random.IntN(8) {
	case 0:
		off = region - n
	case 1:
		off &^= 4095
	}
	return off, n
}

// step runs one random operation.
func (m *modelDisk) step(o *owner, random *rand.Rand) error {
	off, n := m.span(random)
	r := &block.Request{Offset: m.base + off, Length: n, User: random.Uint64()}
	has := func(f block.Features) bool { return m.info.Features&f != 0 }
	if has(block.CanFUA) && random.IntN(8) == 0 {
		r.Flags |= block.FUA
	}
	switch choice := random.IntN(16); {
	case choice < 6:
		r.Op = block.Write
	case choice < 8 && has(block.CanTrim):
		r.Op = block.Trim
	case choice < 10 && has(block.CanWriteZeroes):
		r.Op = block.WriteZeroes
		if random.IntN(2) == 0 {
			r.Flags |= block.NoHole
		}
		if has(block.CanFastZero) && random.IntN(2) == 0 {
			r.Flags |= block.FastZero
		}
	case choice < 11 && has(block.CanFlush):
		r.Op, r.Offset, r.Length, r.Flags = block.Flush, 0, 0, 0
	default:
		r.Op = block.Read
		r.Flags = 0
	}
	return m.execute(o, r, off, random.IntN(2) == 0, random.Uint64())
}

// execute runs r, with memory of the queue or of its own, and follows or
// checks.
func (m *modelDisk) execute(o *owner, r *block.Request, off int64, reserve bool, seed uint64) error {
	if e := m.info.Check(r.Op, r.Flags, uint64(r.Offset), uint64(r.Length)); e != 0 {
		return fmt.Errorf("the check refuses %v, flags %b, %d bytes at %d: %w", r.Op, r.Flags, r.Length, r.Offset, e)
	}
	if r.Op == block.Read || r.Op == block.Write {
		if reserve && !o.queue.Reserve(r) {
			return fmt.Errorf("no memory for %d bytes with nothing reserved", r.Length)
		}
		if !reserve {
			r.Data = make([]byte, r.Length+1)[1:] // nothing is aligned here
		}
		if r.Op == block.Write {
			pattern(r.Data, seed)
		}
	}
	defer o.queue.Release(r)
	user := r.User
	err := o.run(r)
	if err != nil && !(r.Flags&block.FastZero != 0 && block.Errno(err) == enotsup) {
		return fmt.Errorf("%v, flags %b, %d bytes at %d: %w", r.Op, r.Flags, r.Length, r.Offset, err)
	}
	if r.User != user {
		return fmt.Errorf("%v changed User", r.Op)
	}
	if err == nil {
		return m.follow(r, off)
	}
	return nil
}

// follow applies a finished request to the model, or compares with it.
func (m *modelDisk) follow(r *block.Request, off int64) error {
	if r.Op == block.Flush {
		return nil
	}
	want, known := m.want[off:off+r.Length], m.known[off:off+r.Length]
	switch r.Op {
	case block.Write:
		copy(want, r.Data)
	case block.WriteZeroes:
		clear(want)
	case block.Trim:
		clear(known)
		return nil
	case block.Read:
		if int64(len(r.Data)) != r.Length {
			return fmt.Errorf("a read of %d bytes returns %d", r.Length, len(r.Data))
		}
		if m.options.Forgets {
			clear(want)
		}
		if err := compare(r, want, known); err != nil {
			return err
		}
		copy(want, r.Data) // undefined content is what it is
	}
	copy(known, certain[:len(known)])
	return nil
}

// compare compares what a read returned with what is known.
func compare(r *block.Request, want, known []byte) error {
	if bytes.Equal(r.Data, want) {
		return nil
	}
	for i, got := range r.Data {
		if known[i] != 0 && got != want[i] {
			return fmt.Errorf("read of %d bytes at %d: byte %d is %#x, want %#x", r.Length, r.Offset, i, got, want[i])
		}
	}
	return nil
}

// pipeline runs queues in parallel, each on its own part of the disk, each with
// many requests in flight.
func (k *kit) pipeline() {
	d := k.device()
	const queues, depth, part = 4, 16, 64 << 10
	k.parallel(queues, func(i int, o *owner) error {
		base := int64(i) * depth * part
		requests := make([]block.Request, depth)
		for round := range 40 {
			done := func(r *block.Request) error {
				if r.Err != nil {
					return fmt.Errorf("%v at %d: %w", r.Op, r.Offset, r.Err)
				}
				if r.Op == block.Read && !k.options.Forgets {
					want := pattern(make([]byte, r.Length), uint64(round-1)<<32|uint64(base)|r.User)
					if !bytes.Equal(r.Data, want) {
						return fmt.Errorf("round %d: %d bytes at %d are not what this queue wrote", round, r.Length, r.Offset)
					}
				}
				o.queue.Release(r)
				return nil
			}
			op := block.Write
			if round%2 == 1 {
				op = block.Read
			}
			for s := range requests {
				r := &requests[s]
				n := int64(4096 << (uint(s+round/2) % 5))
				*r = block.Request{Op: op, Offset: base + int64(s)*part, Length: n, User: uint64(s)}
				if err := o.reserve(r, done); err != nil {
					return err
				}
				if op == block.Write {
					pattern(r.Data, uint64(round)<<32|uint64(base)|uint64(s))
				}
				if err := o.submit(r); err != nil {
					return err
				}
				if s%5 == 0 {
					o.queue.Kick()
				}
			}
			if err := o.drain(done); err != nil {
				return err
			}
		}
		return nil
	}, d, depth)
}

// overlap has queues write and read the same blocks. A read returns content
// that a queue wrote there.
func (k *kit) overlap() {
	d := k.device()
	const queues, depth, blocks, size = 4, 8, 16, 4096 // bytes
	stamp := func(queue, at int) uint64 { return 0x766961626c6b<<16 | uint64(queue)<<8 | uint64(at) }
	setup := k.owner(d, 1)
	for at := range blocks {
		p := make([]byte, 0, size)
		for len(p) < size {
			p = binary.LittleEndian.AppendUint64(p, stamp(0, at))
		}
		k.write(setup, p, int64(at)*size, 0)
	}
	done := func(o *owner, r *block.Request) error {
		if r.Err != nil {
			return fmt.Errorf("%v at %d: %w", r.Op, r.Offset, r.Err)
		}
		for b := 0; r.Op == block.Read && !k.options.Forgets && b < size; b += 8 {
			word := binary.LittleEndian.Uint64(r.Data[b:])
			if word&^0xff00 != stamp(0, int(r.User)) || word>>8&0xff >= queues {
				return fmt.Errorf("block %d holds %#x, which was never written there", r.User, word)
			}
		}
		o.queue.Release(r)
		return nil
	}
	k.parallel(queues, func(i int, o *owner) error {
		random := rand.New(rand.NewPCG(uint64(i), 7))
		requests := make([]block.Request, depth)
		finish := func(r *block.Request) error { return done(o, r) }
		for range 200 {
			for s := range requests {
				r, at := &requests[s], random.IntN(blocks)
				*r = block.Request{Op: block.Read, Offset: int64(at) * size, Length: size, User: uint64(at)}
				if random.IntN(2) == 0 {
					r.Op = block.Write
				}
				if err := o.reserve(r, finish); err != nil {
					return err
				}
				for b := 0; r.Op == block.Write && b < size; b += 8 {
					binary.LittleEndian.PutUint64(r.Data[b:], stamp(i, at))
				}
				if err := o.submit(r); err != nil {
					return err
				}
			}
			if err := o.drain(finish); err != nil {
				return err
			}
		}
		return nil
	}, d, depth)
}

// parallel runs one owner per queue, each on a goroutine of its own.
func (k *kit) parallel(queues int, run func(i int, o *owner) error, d block.Device, depth int) {
	k.Helper()
	var running sync.WaitGroup
	for i := range queues {
		o := k.owner(d, depth)
		running.Go(func() {
			if err := run(i, o); err != nil {
				k.Errorf("queue %d: %v", i, err)
			}
		})
	}
	running.Wait()
}

// biggest transfers the longest payload, and the whole of what trim and zeroes
// take at once.
func (k *kit) biggest() {
	d := k.device()
	o := k.owner(d, 1)
	info := d.Info()
	n := min(info.Size, int64(info.MaximumPayload))
	for _, op := range []block.Op{block.Write, block.Read} {
		r := &block.Request{Op: op, Offset: info.Size - n, Length: n}
		if !o.queue.Reserve(r) {
			k.Fatalf("Reserve refuses %d bytes, MaximumPayload, with nothing reserved", n)
		}
		if op == block.Write {
			pattern(r.Data, 99)
		}
		k.must(o, r)
		if op == block.Read && !k.options.Forgets && !bytes.Equal(r.Data, pattern(make([]byte, n), 99)) {
			k.Errorf("%d bytes are not what was written", n)
		}
		o.queue.Release(r)
	}
	if info.Features&block.CanWriteZeroes != 0 {
		k.must(o, &block.Request{Op: block.WriteZeroes, Length: info.Size})
		if p := k.read(o, info.Size-n, int(n)); !zero(p) {
			k.Error("the disk does not read as zeroes after WriteZeroes of all of it")
		}
	}
	if info.Features&block.CanTrim != 0 {
		k.must(o, &block.Request{Op: block.Trim, Length: info.Size})
		k.read(o, 0, int(grain(info)))
	}
}
