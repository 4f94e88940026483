package backendtest

import (
	"bytes"
	"fmt"
	"syscall"

	"github.com/viablk/viablk/internal/block"
)

// close checks that a queue can be closed with requests in flight, and that the
// device touches none of their memory afterwards.
func (k *kit) close() {
	d := k.device()
	const depth, size = 16, 64 << 10
	setup := k.owner(d, 1)
	old := pattern(make([]byte, depth*size), 1)
	k.write(setup, old, 0, 0)
	for round := range 8 {
		q, err := d.NewQueue(depth)
		if err != nil {
			k.Fatal(err)
		}
		written, read := bytes.Clone(old), make([]byte, depth*size)
		pattern(written, uint64(round)+2)
		for i := range depth {
			span := func(p []byte) []byte { return p[i*size : (i+1)*size] }
			r := &block.Request{Op: block.Write, Offset: int64(i * size), Length: size, Data: span(written)}
			switch i % 4 {
			case 1:
				r.Op, r.Data = block.Read, span(read)
			case 2:
				r.Data = nil
				if !q.Reserve(r) {
					k.Fatal("Reserve refuses 64 KiB with little reserved")
				}
				copy(r.Data, span(written))
			}
			if !q.Submit(r) {
				k.Fatalf("the queue refuses request %d of %d", i, depth)
			}
			if i == round*2 {
				q.Kick()
			}
		}
		if round%2 == 0 {
			q.Arm()
		}
		if err := q.Close(); err != nil {
			k.Errorf("close a queue with requests in flight: %v", err)
		}
		promised := bytes.Clone(written)
		pattern(written, 1000)
		mine := bytes.Clone(pattern(read, 1001))
		got := k.read(setup, 0, depth*size)
		for i := 0; !k.options.Forgets && i < depth*size; i += size {
			p := got[i : i+size]
			if !bytes.Equal(p, old[i:i+size]) && !bytes.Equal(p, promised[i:i+size]) {
				k.Errorf("round %d: %d bytes at %d are neither old nor new", round, size, i)
			}
		}
		if !bytes.Equal(read, mine) {
			k.Errorf("round %d: a read arrives after its queue was closed", round)
		}
		copy(old, got)
	}
}

// flush checks that Flush and FUA make durable what they promise to.
func (k *kit) flush() {
	d := k.device()
	i := d.Info()
	if i.Features&block.CanFlush == 0 {
		k.Skip("the disk cannot flush")
	}
	size := int(max(4096, grain(i)))
	writer := k.owner(d, 16)
	flusher := writer
	if i.Features&block.CanMultiConn != 0 {
		flusher = k.owner(d, 16)
	}
	for round := range 10 {
		a := pattern(make([]byte, 8*size), uint64(round)*3+1)
		b := pattern(make([]byte, size), uint64(round)*3+2)
		k.write(writer, a, 0, 0)
		var flushes [4]block.Request // at once: all cover the write
		for s := range flushes {
			flushes[s].Op = block.Flush
			if err := flusher.submit(&flushes[s]); err != nil {
				k.Fatal(err)
			}
		}
		if err := flusher.drain(nil); err != nil {
			k.Fatal(err)
		}
		want := a
		if i.Features&block.CanFUA != 0 {
			k.write(writer, b, int64(2*size), block.FUA)
			want = bytes.Clone(a)
			copy(want[2*size:], b)
		}
		loose := pattern(make([]byte, size), uint64(round)*3+3)
		k.write(writer, loose, int64(9*size), 0) // nothing is promised
		if k.options.Crash != nil {
			k.options.Crash(k, d)
		}
		if got := k.read(flusher, 0, len(want)); !k.options.Forgets && !bytes.Equal(got, want) {
			k.Fatalf("round %d: a flushed write is lost", round)
		}
	}
}

// errors checks that failures are answered, one by one, by a queue that lives.
func (k *kit) errors() {
	if k.options.Broken == nil {
		k.Skip("Options.Broken is not set")
	}
	d := k.options.Broken(k)
	k.Cleanup(func() { closeDevice(k, d) })
	n := max(4096, grain(d.Info()))
	k.parallel(2, func(i int, o *owner) error {
		requests := make([]block.Request, 16)
		done := func(r *block.Request) error {
			want := syscall.Errno(0)
			if r.Op == block.Write {
				want = syscall.EIO
			}
			if e := block.Errno(r.Err); e != want {
				return fmt.Errorf("a %v answers %v, want errno %d", r.Op, r.Err, want)
			}
			o.queue.Release(r)
			return nil
		}
		for range 50 {
			for s := range requests {
				r := &requests[s]
				*r = block.Request{Op: block.Read, Offset: int64(s) * n, Length: n, Err: syscall.EINVAL}
				if s%3 != 0 {
					r.Op = block.Write
				}
				if s%2 == 0 {
					if err := o.reserve(r, done); err != nil {
						return err
					}
				} else {
					r.Data = make([]byte, n)
				}
				if err := o.submit(r); err != nil {
					return err
				}
			}
			if err := o.drain(done); err != nil {
				return err
			}
		}
		return nil
	}, d, 16)
}
