package backendtest

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// depth checks that a queue takes as many requests as it was opened for, and no
// more until one was reaped.
func (k *kit) depth() {
	d := k.device()
	const depth = 8
	o := k.owner(d, depth)
	n := int(max(4096, grain(d.Info())))
	requests := make([]block.Request, depth+1)
	for i := range requests {
		requests[i] = block.Request{Op: block.Read, Length: int64(n), Data: make([]byte, n), User: uint64(i)}
	}
	for round := range 20 {
		for i := range depth {
			if err := o.submit(&requests[i]); err != nil {
				k.Fatalf("round %d: %v", round, err)
			}
		}
		over := &requests[depth]
		if o.queue.Submit(over) {
			k.Fatalf("a queue of depth %d takes %d requests", depth, depth+1)
		}
		o.queue.Kick()
		finished, err := o.next()
		if err != nil {
			k.Fatal(err)
		}
		if finished[0] == over {
			k.Fatal("the queue returns a request that it refused")
		}
		if err := o.submit(over); err != nil {
			k.Fatalf("after a Reap: %v", err)
		}
		if err := o.drain(nil); err != nil {
			k.Fatal(err)
		}
	}
}

// reserve checks the rules of Reserve and Release.
func (k *kit) reserve() {
	d := k.device()
	o := k.owner(d, 4)
	i := d.Info()
	k.grants(o, int64(i.MaximumPayload))
	k.exclusive(o, int64(i.MaximumPayload)/16)

	// A read has its memory when it completes, at the latest.
	r := &block.Request{Op: block.Read, Length: grain(i)}
	if !o.queue.Reserve(r) {
		k.Fatal("Reserve refuses a read with nothing reserved")
	}
	k.must(o, r)
	if int64(len(r.Data)) != r.Length {
		k.Errorf("a read of %d bytes has %d", r.Length, len(r.Data))
	}
	o.queue.Release(r)
	for _, op := range []block.Op{block.Flush, block.Trim, block.WriteZeroes} {
		r := &block.Request{Op: op, Length: i.Size}
		if !o.queue.Reserve(r) || r.Data != nil {
			k.Errorf("Reserve for %v provides %d bytes", op, len(r.Data))
		}
		o.queue.Release(r)
	}
}

// grants checks that with nothing reserved any length is granted, again and
// again.
func (k *kit) grants(o *owner, longest int64) {
	k.Helper()
	for range 3 {
		r := &block.Request{Op: block.Write, Length: longest}
		if !o.queue.Reserve(r) || int64(len(r.Data)) != longest || r.Memory == 0 {
			k.Fatalf("Reserve of MaximumPayload provides %d bytes, Memory %d", len(r.Data), r.Memory)
		}
		o.queue.Release(r)
		if r.Data != nil || r.Memory != 0 {
			k.Fatal("Release leaves memory with the request")
		}
		o.queue.Release(r) // nothing is reserved: nothing happens
	}
}

// exclusive checks that reserved memory is not reserved twice, until none is
// left.
func (k *kit) exclusive(o *owner, n int64) {
	k.Helper()
	var held []*block.Request
	for len(held) < 256 {
		r := &block.Request{Op: block.Write, Length: n, User: uint64(len(held))}
		if !o.queue.Reserve(r) {
			if r.Data != nil || r.Memory != 0 {
				k.Error("a refused Reserve sets Data or Memory")
			}
			break
		}
		held = append(held, r)
		for at := 0; at < len(r.Data); at += 512 {
			r.Data[at] = byte(r.User)
		}
	}
	if len(held) == 0 {
		k.Fatalf("Reserve refuses %d bytes with nothing reserved", n)
	}
	for _, r := range held {
		for at := 0; at < len(r.Data); at += 512 {
			if r.Data[at] != byte(r.User) {
				k.Fatalf("reservations %d and %d share memory", r.User, r.Data[at])
			}
		}
		o.queue.Release(r)
	}
}

// isolation checks that memory of one queue never turns up in another.
func (k *kit) isolation() {
	d := k.device()
	secret := []byte("what one client wrote ")
	n := min(int64(d.Info().MaximumPayload), 4<<20)
	spill := func(o *owner) {
		r := &block.Request{Op: block.Write, Length: n}
		if !o.queue.Reserve(r) {
			k.Fatalf("Reserve refuses %d bytes with nothing reserved", n)
		}
		copy(r.Data, bytes.Repeat(secret, len(r.Data)/len(secret)))
		o.queue.Release(r)
	}
	search := func(o *owner) {
		r := &block.Request{Op: block.Write, Length: n}
		if !o.queue.Reserve(r) {
			k.Fatalf("Reserve refuses %d bytes with nothing reserved", n)
		}
		if bytes.Contains(r.Data, secret[1:]) {
			k.Error("a queue sees memory of another")
		}
		o.queue.Release(r)
	}
	one, other := k.owner(d, 1), k.owner(d, 1)
	spill(one)
	search(other)
	search(k.owner(d, 1))

	q, err := d.NewQueue(1)
	if err != nil {
		k.Fatal(err)
	}
	spill(&owner{queue: q, limit: k.options.Timeout})
	if err := q.Close(); err != nil {
		k.Error(err)
	}
	search(k.owner(d, 1))
}

// sleep checks that no completion is missed by an owner that sleeps, that arms
// and then does something else, or that never sleeps.
func (k *kit) sleep() {
	d := k.device()
	n := int(max(512, grain(d.Info())))
	k.parallel(2, func(i int, o *owner) error {
		random := rand.New(rand.NewPCG(uint64(i), 3))
		requests := make([]block.Request, 16)
		memory := make([]byte, n*len(requests))
		for range 500 {
			for s := range 1 + random.IntN(len(requests)) {
				requests[s] = block.Request{
					Op:     block.Read,
					Offset: int64(random.IntN(1024)) * int64(n),
					Length: int64(n),
					Data:   memory[s*n : (s+1)*n],
				}
				if err := o.submit(&requests[s]); err != nil {
					return err
				}
				if random.IntN(3) == 0 {
					o.queue.Kick()
				}
				if random.IntN(4) == 0 {
					o.queue.Arm() // another file descriptor woke the owner
				}
			}
			o.queue.Kick()
			for random.IntN(2) == 0 && o.inFlight > 0 {
				k := o.queue.Reap(o.dst[:])
				o.inFlight -= k
			}
			if err := o.drain(nil); err != nil {
				return err
			}
		}
		return nil
	}, d, 16)
}

// quiet checks that a queue with no request in flight lets its owner sleep.
func (k *kit) quiet() {
	d := k.device()
	o := k.owner(d, 16)
	n := int(max(512, grain(d.Info())))
	fd := o.queue.FD()
	for range 20 {
		for range 16 {
			if err := o.submit(&block.Request{Op: block.Read, Length: int64(n), Data: make([]byte, n)}); err != nil {
				k.Fatal(err)
			}
		}
		if err := o.drain(nil); err != nil {
			k.Fatal(err)
		}
		if o.queue.FD() != fd {
			k.Fatalf("FD changes from %d to %d", fd, o.queue.FD())
		}
		// Pending wake-ups of earlier sleeps may wake the owner a few times
		// more.
		for tries := 0; ; tries++ {
			if got := o.queue.Reap(o.dst[:]); got != 0 {
				k.Fatalf("Reap returns %d requests with none in flight", got)
			}
			d, ok := o.queue.Arm()
			if !ok || d == 0 {
				k.Fatalf("Arm answers %v, %v with no request in flight", d, ok)
			}
			if fd < 0 {
				break
			}
			readable, err := o.sleep(0)
			if err != nil {
				k.Fatal(err)
			}
			if !readable {
				break
			}
			if tries == 100 {
				k.Fatal("the queue stays readable with no request in flight")
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// allocations checks that requests cost none.
func (k *kit) allocations() {
	d := k.device()
	o := k.owner(d, 16)
	i := d.Info()
	n := max(4096, grain(i))
	caller := make([]byte, 16*n)
	requests := make([]block.Request, 16)
	release := func(r *block.Request) error {
		o.queue.Release(r)
		return r.Err
	}
	round := func() {
		for s := range requests {
			r := &requests[s]
			*r = block.Request{Op: block.Read, Offset: int64(s) * n, Length: n}
			if s%2 == 1 && i.Features&block.ReadOnly == 0 {
				r.Op = block.Write
			}
			if s%4 < 2 {
				if err := o.reserve(r, release); err != nil {
					k.Fatal(err)
				}
			} else {
				r.Data = caller[int64(s)*n : int64(s+1)*n]
			}
			if err := o.submit(r); err != nil {
				k.Fatal(err)
			}
		}
		if err := o.drain(release); err != nil {
			k.Fatal(err)
		}
	}
	for range 20 {
		round() // reach the steady state
	}
	per := testing.AllocsPerRun(200, round) / float64(len(requests))
	if per > k.options.Allocations {
		k.Errorf("%.2f allocations per request, want at most %v", per, k.options.Allocations)
	}
}
