package backendtest

import (
	"bytes"
	"errors"
	"syscall"

	"github.com/viablk/viablk/internal/block"
)

// abandoned is how many writes a queue has when the kit abandons it.
const abandoned = 16

// abort checks that Abort drops what has not begun: a write that it drops has
// no effect, every other one has all of its effect, and none has it after that.
func (k *kit) abort() { k.abandon(false) }

// abortByClose checks the same of Close.
func (k *kit) abortByClose() { k.abandon(true) }

// abandon writes, and aborts or closes the queue.
func (k *kit) abandon(closes bool) {
	open := k.open
	if k.options.Slow != nil {
		open = k.options.Slow
	}
	d := open(k)
	k.Cleanup(func() { closeDevice(k, d) })
	size := int(max(4096, grain(d.Info())))
	setup := k.owner(d, 1)
	old := pattern(make([]byte, abandoned*size), 1)
	k.write(setup, old, 0, 0)
	q, err := d.NewQueue(abandoned)
	if err != nil {
		k.Fatal(err)
	}
	o := &owner{queue: q, limit: k.options.Timeout}
	written := pattern(make([]byte, len(old)), 2)
	for i := range abandoned {
		r := &block.Request{Op: block.Write, Offset: int64(i * size), Length: int64(size), Data: written[i*size : (i+1)*size]}
		if err := o.submit(r); err != nil {
			k.Fatal(err)
		}
		if i == abandoned/2 {
			q.Kick()
		}
	}
	var dropped map[int64]bool
	if !closes {
		dropped = k.abortQueue(o)
	}
	if err := q.Close(); err != nil {
		k.Errorf("close an abandoned queue: %v", err)
	}
	if k.options.Forgets {
		return
	}
	k.checkOutcome(setup, old, written, dropped)
	late := pattern(make([]byte, len(old)), 3) // what comes late shows
	k.write(setup, late, 0, 0)
	if !bytes.Equal(k.read(setup, 0, len(late)), late) {
		k.Error("a write took effect after its queue was closed")
	}
}

// abortQueue aborts a queue, and returns for each offset whether its write was
// dropped.
func (k *kit) abortQueue(o *owner) map[int64]bool {
	dropped := make(map[int64]bool)
	o.queue.Abort()
	err := o.drain(func(r *block.Request) error {
		if r.Err != nil && !errors.Is(r.Err, syscall.ECANCELED) {
			return r.Err
		}
		dropped[r.Offset] = r.Err != nil
		return nil
	})
	if err != nil {
		k.Fatalf("after Abort: %v", err)
	}
	if len(dropped) != abandoned {
		k.Errorf("Reap returns %d of %d requests after Abort", len(dropped), abandoned)
	}
	return dropped
}

// checkOutcome checks the effect of writes that were abandoned. Without
// dropped, each may have been.
func (k *kit) checkOutcome(reader *owner, old, written []byte, dropped map[int64]bool) {
	got, size, lost := k.read(reader, 0, len(old)), len(old)/abandoned, 0
	for at := 0; at < len(got); at += size {
		is, before, effect := got[at:at+size], old[at:at+size], written[at:at+size]
		drop, known := dropped[int64(at)]
		switch {
		case bytes.Equal(is, before) && (drop || !known):
			lost++
		case bytes.Equal(is, before):
			k.Errorf("the write at %d succeeded and is not on the disk", at)
		case !bytes.Equal(is, effect):
			k.Errorf("a part of the write at %d is on the disk", at)
		case drop:
			k.Errorf("the write at %d was dropped and is on the disk", at)
		}
	}
	if k.options.Slow != nil && lost == 0 {
		k.Error("a disk that is slow to begin executes every write of an abandoned queue")
	}
}
