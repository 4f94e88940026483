package viatest

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/viablk/viablk/via"
)

const (
	arenaBytes      = 32 << 20 // sparse
	descriptorBytes = 2 << 20
	queueDepth      = 128 // descriptors of a queue, unless a case says otherwise
)

// pause lets another goroutine run.
func pause() { runtime.Gosched() }

// end is one side of a case: a NIC and what the case created on it. One
// goroutine at a time uses an end.
type end struct {
	e    *env
	name string
	nic  *via.NIC

	tag   via.Ptag
	arena *via.Arena
	descs *via.Memory // descriptors: no remote access
	data  *via.Memory // payload: remote reads and writes
	used  int         // bytes of data handed out
	dused int         // bytes of descs handed out

	cq  *via.CQ
	vi  *via.VI // the default VI
	vis []*via.VI
	cqs []*via.CQ

	posted     map[queueKey][]*via.Descriptor // in order, not completed
	done       []via.Completion               // in order of polling
	seen       map[*via.Descriptor]via.Completion
	memoryGone map[*via.Descriptor]bool // their memory is gone: they say nothing
	batch      [32]via.Completion
	closed     bool

	mu sync.Mutex
	// +checklocks:mu
	async []via.AsyncError
}

// queueKey names a work queue.
type queueKey struct {
	vi   *via.VI
	recv bool
}

func newEnd(e *env, name string, nic *via.NIC) *end {
	x := &end{
		e: e, name: name, nic: nic,
		posted: make(map[queueKey][]*via.Descriptor),
		seen:   make(map[*via.Descriptor]via.Completion),
	}
	nic.ErrorCallback(x.record)
	var err error
	x.tag, err = nic.CreatePtag()
	e.check(err, "create tag")
	x.arena, err = nic.NewArena(arenaBytes)
	e.check(err, "map arena")
	mem := x.arena.Bytes()
	x.descs, err = nic.RegisterMem(mem[:descriptorBytes], via.MemAttributes{Ptag: x.tag})
	e.check(err, "register descriptors")
	x.data, err = nic.RegisterMem(mem[descriptorBytes:], x.open())
	e.check(err, "register data")
	x.cq, err = nic.CreateCQ(4 * queueDepth)
	e.check(err, "create completion queue")
	return x
}

// open returns attributes that allow the peer everything the NIC can.
func (x *end) open() via.MemAttributes {
	return via.MemAttributes{
		Ptag: x.tag, EnableRdmaWrite: true,
		EnableRdmaRead: x.nic.Limits().RdmaReadLevels&x.e.level != 0,
	}
}

// record is the NIC's error callback.
func (x *end) record(a via.AsyncError) {
	x.mu.Lock()
	x.async = append(x.async, a)
	x.mu.Unlock()
}

// errors returns the asynchronous errors so far.
func (x *end) errors() []via.AsyncError {
	x.mu.Lock()
	defer x.mu.Unlock()
	return append([]via.AsyncError(nil), x.async...)
}

// forget drops the asynchronous errors so far.
func (x *end) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.async = nil
}

// count returns how many asynchronous errors of a code there were.
func (x *end) count(code via.AsyncCode) int {
	n := 0
	for _, a := range x.errors() {
		if a.Code == code {
			n++
		}
	}
	return n
}

// String tells the state for a failure message.
func (x *end) String() string {
	state := "no vi"
	if x.vi != nil {
		state = x.vi.State().String()
	}
	codes := ""
	for _, a := range x.errors() {
		codes += fmt.Sprintf(" [%v: %v]", a.Code, a.Cause)
	}
	return fmt.Sprintf("%s, %d completions,%s", state, len(x.done), codes)
}

// attributes returns the attributes of the kit's VIs.
func (x *end) attributes() via.ViAttributes {
	open := x.open()
	return via.ViAttributes{
		Reliability: x.e.level, MaxTransferSize: maxTransfer(x.e),
		Ptag: x.tag, EnableRdmaWrite: true, EnableRdmaRead: open.EnableRdmaRead,
	}
}

// maxTransfer is the transfer size of the kit's VIs: big enough to be bigger
// than what a provider holds inside, where the provider allows it.
func maxTransfer(e *env) uint32 {
	return min(4<<20, e.f.Client.Limits().MaxTransferSize, e.f.Server.Limits().MaxTransferSize)
}

// newVI creates a VI on the end's completion queue.
func (x *end) newVI(attrs via.ViAttributes) *via.VI {
	x.e.t.Helper()
	return x.newViOn(attrs, via.ViConfig{
		SendCQ: x.cq, RecvCQ: x.cq, SendDepth: queueDepth, RecvDepth: queueDepth,
	})
}

func (x *end) newViOn(attrs via.ViAttributes, cfg via.ViConfig) *via.VI {
	x.e.t.Helper()
	vi, err := x.nic.CreateVi(attrs, cfg)
	x.e.check(err, x.name+": create vi")
	x.vis = append(x.vis, vi)
	return vi
}

// newCQ creates another completion queue, which poll polls too.
func (x *end) newCQ(entries int) *via.CQ {
	x.e.t.Helper()
	cq, err := x.nic.CreateCQ(entries)
	x.e.check(err, x.name+": create completion queue")
	x.cqs = append(x.cqs, cq)
	return cq
}

// poll polls the end's completion queues once and returns how many completions
// there were.
func (x *end) poll() int {
	n := 0
	for i := -1; i < len(x.cqs); i++ {
		cq := x.cq
		if i >= 0 {
			cq = x.cqs[i]
		}
		k := cq.Poll(x.batch[:])
		x.collect(x.batch[:k])
		n += k
	}
	return n
}

// collect records completions and checks what holds for all: first posted,
// first completed; the completion says what the descriptor says.
func (x *end) collect(got []via.Completion) {
	for _, c := range got {
		key := queueKey{c.VI, c.Recv}
		queue := x.posted[key]
		if len(queue) == 0 || queue[0] != c.Descriptor {
			x.e.t.Errorf("%s: a completion is not that of the oldest descriptor (recv %v, status %v)", x.name, c.Recv, c.Status)
		} else {
			x.posted[key] = queue[1:]
		}
		d := c.Descriptor
		if !x.memoryGone[d] && (d.Status() != c.Status || d.Length() != c.Length) {
			x.e.t.Errorf("%s: completion says %v, %d bytes; its descriptor %v, %d bytes",
				x.name, c.Status, c.Length, d.Status(), d.Length())
		}
		x.done = append(x.done, c)
		x.seen[d] = c
	}
}

// expectMemoryGone expects nothing of a descriptor's memory at its completion.
func (x *end) expectMemoryGone(d *via.Descriptor) {
	if x.memoryGone == nil {
		x.memoryGone = make(map[*via.Descriptor]bool)
	}
	x.memoryGone[d] = true
}

// buf is a piece of the end's data region.
type buf struct {
	mem *via.Memory
	off int
	b   []byte
}

func (b buf) addr() uint64 { return b.mem.Addr() + uint64(b.off) }

// part returns [from, from+n) of the piece.
func (b buf) part(from, n int) buf { return buf{b.mem, b.off + from, b.b[from : from+n : from+n]} }

// buffer hands out n bytes of the data region, zeroed, at any alignment.
func (x *end) buffer(n int) buf {
	x.e.t.Helper()
	if x.used+n > len(x.data.Bytes()) {
		x.e.t.Fatalf("%s: the case needs more than %d bytes of data", x.name, len(x.data.Bytes()))
	}
	off := x.used
	x.used += n
	return buf{x.data, off, x.data.Bytes()[off : off+n : off+n]}
}

// desc hands out a descriptor with room for segments.
func (x *end) desc(segments int) *via.Descriptor {
	x.e.t.Helper()
	size := via.DescriptorSize(segments)
	d, err := x.descs.NewDescriptor(x.dused, size)
	x.e.check(err, x.name+": make descriptor")
	x.dused += size
	return d
}

// close destroys everything and closes the NIC.
func (x *end) close() {
	if x.closed {
		return
	}
	x.closed = true
	t := x.e.t
	report := func(err error, doing string) {
		if err != nil {
			t.Errorf("%s: tear down: %s: %v", x.name, doing, err)
		}
	}
	for _, vi := range x.vis {
		report(vi.Disconnect(), "disconnect")
	}
	for x.poll() != 0 {
	}
	for _, vi := range x.vis {
		report(vi.Destroy(), "destroy vi")
	}
	for _, cq := range append(x.cqs, x.cq) {
		report(cq.Destroy(), "destroy completion queue")
	}
	report(x.descs.Deregister(), "deregister descriptors")
	report(x.data.Deregister(), "deregister data")
	report(x.arena.Close(), "unmap arena")
	report(x.nic.DestroyPtag(x.tag), "destroy tag")
	report(x.nic.Close(), "close nic")
	for key, queue := range x.posted {
		if len(queue) != 0 && !t.Failed() {
			t.Errorf("%s: %d descriptors (recv %v) never completed", x.name, len(queue), key.recv)
		}
	}
}
