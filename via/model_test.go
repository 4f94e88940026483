package via

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// modelPost is a post as the model of a work queue sees it.
type modelPost struct {
	desc             *Descriptor
	bad, read, fence bool
	want             Status // error bits it completes with
	done             bool
}

// queueModel drives one queue of a VI at unreliable delivery and keeps in a
// plain list what it must do.
type queueModel struct {
	*bench
	q     *workQueue
	recv  bool
	depth int
	posts []*modelPost // not taken, in order; those at the link and the completed ones first
	link  *scriptedLink
	done  int  // works that the link has reported
	grew  bool // the link has room, unknown to the queue until it reports
	free  []*Descriptor
}

// works returns what the link was given.
func (m *queueModel) works() []*Work {
	if m.recv {
		return slices.Concat(m.link.begun, m.link.recvs)
	}
	return m.link.sends
}

// fill posts up to n descriptors; how they look comes of one number, so that
// rapid has to draw few.
func (m *queueModel) fill(t *rapid.T, n int) {
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	plain := rapid.Bool().Draw(t, "plain")
	for range n {
		m.post(t, r, plain)
	}
}

func (m *queueModel) post(t *rapid.T, r *rand.Rand, plain bool) {
	if len(m.free) == 0 {
		m.free = append(m.free, m.desc(OpSend, 8))
	}
	p := &modelPost{desc: m.free[len(m.free)-1]}
	op := OpSend
	if m.recv {
		op = OpRecv
	}
	if !m.recv && !plain {
		op = []Opcode{OpSend, OpSend, OpRdmaWrite, OpRdmaRead}[r.IntN(4)]
		p.fence = r.IntN(10) == 0
	}
	p.read = op == OpRdmaRead
	p.desc.Reset(op)
	if op == OpRdmaWrite || op == OpRdmaRead {
		p.desc.SetRemote(1, 2)
	}
	p.desc.AddSegment(m.mem.Addr(), m.mem.Handle(), 8)
	if p.fence {
		p.desc.SetFence()
	}
	if !plain && r.IntN(20) == 0 {
		p.bad, p.want = true, StatusLengthError
		p.desc.b[offLength]++
	}
	do := m.vi.StageSend
	if m.recv {
		do = m.vi.PostRecv
	}
	err := do(p.desc)
	if full := len(m.posts) == m.depth; full != (err == ErrResource) || !full && err != nil {
		t.Fatalf("post with %d of %d in the queue: %v", len(m.posts), m.depth, err)
	}
	if err == nil {
		m.free = m.free[:len(m.free)-1]
		m.posts = append(m.posts, p)
	}
}

// complete reports the oldest works.
func (m *queueModel) complete(t *rapid.T) {
	works := m.works()
	k := rapid.IntRange(0, len(works)-m.done).Draw(t, "works")
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	for _, w := range works[m.done : m.done+k] {
		p := m.at(w)
		p.want = []Status{0, 0, StatusTransportError}[r.IntN(3)]
		p.done = true
		m.report(done(w, p.want, 8))
	}
	m.done += k
	if m.done == len(works) && m.link.room == 0 {
		m.link.room = 1 // an idle link takes what it is given
	}
	m.grew = m.grew && k == 0
	for _, c := range m.bench.poll() {
		m.completeOldest(t, c.Descriptor, c.Status)
	}
}

// at returns the post of a work: the oldest that the link has, by construction.
func (m *queueModel) at(w *Work) *modelPost {
	for _, p := range m.posts {
		if !p.bad && !p.done {
			if (w.Op == OpRdmaRead) != p.read {
				m.t.Fatalf("a work of opcode %d for a post that reads: %v", w.Op, p.read)
			}
			return p
		}
	}
	m.t.Fatal("the link was given more than was posted")
	return nil
}

// completeOldest checks a completion against the oldest post.
func (m *queueModel) completeOldest(t *rapid.T, d *Descriptor, s Status) {
	if len(m.posts) == 0 || m.posts[0].desc != d {
		t.Fatalf("completed %p out of order", d)
	}
	p := m.posts[0]
	if s&StatusErrorMask != p.want || s&StatusDone == 0 || d.Status() != s {
		t.Fatalf("completed as %v (in memory %v), want %v", s, d.Status(), p.want|StatusDone)
	}
	m.posts = m.posts[1:]
	m.free = append(m.free, d)
}

// disconnect flushes what is left, and connects again.
func (m *queueModel) reconnect(t *rapid.T) {
	m.must(m.vi.Disconnect())
	for _, p := range m.posts {
		if !p.done && p.desc.Status()&StatusErrorMask == StatusFlushed {
			p.want = StatusFlushed
		}
	}
	for _, c := range m.bench.poll() {
		m.completeOldest(t, c.Descriptor, c.Status)
	}
	if len(m.posts) != 0 {
		t.Fatalf("%d posts have no completion after a disconnect", len(m.posts))
	}
	m.connect()
	m.link, m.done, m.grew = m.bench.link, 0, false
	m.link.room = rapid.SampledFrom([]int{1, 5, 40, 1000}).Draw(t, "room")
}

// check holds the invariants of the queue against the list.
func (m *queueModel) check(t *rapid.T) {
	works := m.works()
	at := len(works) - m.done
	if at > int(m.q.width) {
		t.Fatalf("%d works at the link, its window is %d", at, m.q.width)
	}
	var waiting []*modelPost // neither complete nor at the link
	reads, here := 0, at     // reads in flight
	for _, p := range m.posts {
		switch {
		case p.done || p.desc.Status()&StatusDone != 0:
		case !p.bad && here > 0:
			here--
			if p.fence && reads > 0 {
				t.Fatalf("a fenced post is at the link with %d reads before it", reads)
			}
			if p.read {
				reads++
			}
		default:
			waiting = append(waiting, p)
		}
	}
	if uint32(len(waiting)) != m.q.tail-m.q.next || m.q.reads != reads {
		t.Fatalf("%d posts wait and %d reads are in flight, want %d and %d", m.q.tail-m.q.next, m.q.reads, len(waiting), reads)
	}
	if m.q.refills > m.q.spilled {
		t.Fatalf("%d refills for %d posts that waited", m.q.refills, m.q.spilled)
	}
	if m.recv && m.q.spilled != 0 && !slices.ContainsFunc(m.posts, func(p *modelPost) bool { return p.bad }) && len(waiting) != 0 {
		t.Fatalf("%d good receives wait", len(waiting))
	}
	if len(waiting) == 0 {
		return
	}
	first := waiting[0]
	switch { // why does it wait?
	case first.bad && at > 0:
	case !first.bad && first.fence && reads > 0:
	case !m.recv && (m.link.room == 0 || m.grew):
	case at > int(m.q.low) && !m.q.fenced:
	default:
		t.Fatalf("a post (bad %v, fence %v) waits with %d works at the link (low water %d), %d reads, room for %d",
			first.bad, first.fence, at, m.q.low, reads, m.link.room)
	}
}

// A work queue does what a list does: in order, each post once, never more at
// the link than its window, and nothing waits without a reason.
func TestWorkQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newScripted()
		p.limits.MaxDescriptorsPerQueue, p.limits.MaxCQEntries = 1<<10, 1<<12
		p.limits.RdmaReadLevels = UnreliableDelivery // where faulty descriptors do not end the run
		b := p.bench(t, UnreliableDelivery)
		recv := rapid.IntRange(0, 3).Draw(rt, "recv") == 0
		depth := rapid.SampledFrom([]int{1, 2, 3, 7, 12, 127, 128, 129, 300}).Draw(rt, "depth")
		b.must(b.vi.Destroy())
		b.must(b.cq.Destroy())
		var err error
		b.cq, err = b.nic.CreateCQ(depth + 1)
		b.must(err)
		b.vi, err = b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: depth, RecvDepth: depth})
		b.must(err)
		m := &queueModel{bench: b, q: b.vi.queue(recv), recv: recv, depth: depth}
		m.reconnect(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"post":     func(t *rapid.T) { m.fill(t, rapid.IntRange(1, 5).Draw(t, "posts")) },
			"overfill": func(t *rapid.T) { m.fill(t, depth-len(m.posts)+1) },
			"complete": m.complete,
			"room": func(t *rapid.T) {
				if len(m.works()) > m.done {
					m.link.room, m.grew = rapid.SampledFrom([]int{0, 1, 5, 1000}).Draw(t, "room"), true
				}
			},
			"reconnect": m.reconnect,
			"":          m.check,
		})
		if n := len(b.errs); n > 0 && slices.ContainsFunc(b.errs, func(e AsyncError) bool { return e.Code != AsyncOverrun }) {
			rt.Fatalf("callbacks %v", b.codes())
		}
		m.link.room = 1 << 20
		for range 2*len(m.posts) + 2 { // everything ends
			for _, w := range m.works()[m.done:] {
				m.at(w).done = true
				m.report(Done{Work: w})
				m.done++
			}
			for _, c := range b.poll() {
				m.completeOldest(rt, c.Descriptor, c.Status)
			}
		}
		m.reconnect(rt)
	})
}

// cqModel is a completion queue as lists.
type cqModel struct {
	*bench
	vis     []*VI
	entries []*VI                 // in the queue
	done    map[*VI][]*Descriptor // complete, not taken
	lost    map[*VI]int
	room    int
	overrun bool
	errors  int
	free    []*Descriptor
}

func (m *cqModel) post(t *rapid.T) {
	vi := rapid.SampledFrom(m.vis).Draw(t, "vi")
	if len(m.done[vi]) == 8 {
		return
	}
	if len(m.free) == 0 {
		m.free = append(m.free, m.desc(OpSend, 8))
	}
	d := m.free[0]
	m.free = m.free[1:]
	d.Reset(OpSend)
	m.must(vi.PostSend(d)) // completes at once: the vi is idle
	m.done[vi] = append(m.done[vi], d)
	switch {
	case len(m.entries) < m.room:
		m.entries = append(m.entries, vi)
	case !m.overrun:
		m.overrun = true
		m.errors++
		fallthrough
	default:
		m.lost[vi]++
	}
}

// pop takes a VI's oldest completion.
func (m *cqModel) pop(vi *VI) *Descriptor {
	if len(m.done[vi]) == 0 {
		return nil
	}
	d := m.done[vi][0]
	m.done[vi] = m.done[vi][1:]
	if len(m.done[vi]) == 0 {
		m.lost[vi] = 0
	}
	m.free = append(m.free, d)
	return d
}

// next takes the oldest entry that has a completion.
func (m *cqModel) next() *VI {
	for len(m.entries) > 0 {
		vi := m.entries[0]
		m.entries = m.entries[1:]
		if len(m.done[vi]) > 0 {
			return vi
		}
	}
	return nil
}

func (m *cqModel) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"post": m.post,
		"poll": func(t *rapid.T) {
			batch := make([]Completion, rapid.IntRange(1, 6).Draw(t, "n"))
			n := m.cq.Poll(batch)
			for i := range batch {
				vi := m.next()
				if (vi != nil) != (i < n) {
					t.Fatalf("polled %d of %d", n, len(batch))
				}
				if vi == nil {
					return
				}
				if d := m.pop(vi); batch[i].VI != vi || batch[i].Descriptor != d || batch[i].Recv {
					t.Fatalf("completion %+v, want %p of %p", batch[i], d, vi)
				}
			}
		},
		"done": func(t *rapid.T) {
			vi, recv, err := m.cq.Done()
			if want := m.next(); vi != want || recv || (err == ErrNotDone) != (want == nil) {
				t.Fatalf("done is %p, %v, %v, want %p", vi, recv, err, want)
			}
		},
		"send done": func(t *rapid.T) {
			vi := rapid.SampledFrom(m.vis).Draw(t, "vi")
			if d, err := vi.SendDone(); d != m.pop(vi) || err != ErrDescriptor { // flushed, or none
				t.Fatalf("send done is %p, %v", d, err)
			}
		},
		"resize": func(t *rapid.T) {
			n := rapid.IntRange(1, 20).Draw(t, "entries")
			err := m.cq.Resize(n)
			if (err == nil) != (n >= len(m.entries)) {
				t.Fatalf("resize to %d with %d entries: %v", n, len(m.entries), err)
			}
			if err == nil {
				m.room, m.overrun = powerOfTwo(n), false
			}
		},
		"destroy": func(t *rapid.T) {
			i := rapid.IntRange(0, len(m.vis)-1).Draw(t, "vi")
			vi := m.vis[i]
			err := vi.Destroy()
			if (err == nil) != (len(m.done[vi]) <= m.lost[vi]) {
				t.Fatalf("destroy with %d completions, %d of them lost: %v", len(m.done[vi]), m.lost[vi], err)
			}
			if err != nil {
				return
			}
			m.entries = slices.DeleteFunc(m.entries, func(e *VI) bool { return e == vi })
			m.free = append(m.free, m.done[vi]...)
			delete(m.done, vi)
			delete(m.lost, vi)
			m.vis[i], err = m.nic.CreateVi(vi.attrs, ViConfig{SendCQ: m.cq, RecvCQ: m.cq, SendDepth: 8, RecvDepth: 1})
			m.must(err)
		},
		"": func(t *rapid.T) {
			if got := int(m.cq.tail - m.cq.head); got != len(m.entries) || len(m.errs) != m.errors {
				t.Fatalf("%d entries and %d callbacks, want %d and %d", got, len(m.errs), len(m.entries), m.errors)
			}
		},
	}
}

// A completion queue does what a list of names does.
func TestCompletionQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t, ReliableDelivery)
		m := &cqModel{bench: b, vis: []*VI{b.vi}, done: make(map[*VI][]*Descriptor), lost: make(map[*VI]int)}
		b.must(b.vi.Destroy())
		b.must(b.cq.Destroy())
		size := rapid.IntRange(1, 20).Draw(rt, "entries")
		m.room = powerOfTwo(size)
		var err error
		b.cq, err = b.nic.CreateCQ(size)
		b.must(err)
		m.vis = nil
		for range 3 {
			vi, err := b.nic.CreateVi(b.vi.attrs, ViConfig{SendCQ: b.cq, RecvCQ: b.cq, SendDepth: 8, RecvDepth: 1})
			b.must(err)
			m.vis = append(m.vis, vi)
		}
		rt.Repeat(m.actions())
	})
}
