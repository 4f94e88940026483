package limit

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/viablk/viablk/internal/block"
)

// client asks for the next request as soon as the last ones are answered.
type client struct {
	session         *Session
	depth           int   // requests that it has at a time, on one queue
	length          int64 // bytes of each
	requests, bytes float64
	late            time.Duration // that its owner sleeps longer than it wants

	queue block.Queue
	due   time.Duration
	idle  []*block.Request
}

// world runs clients against an export in virtual time. The disk itself takes
// none.
type world struct {
	export  *Export
	now     time.Duration
	clients []*client
}

func newWorld(t testing.TB, shared, each Rates, clients ...*client) *world {
	t.Helper()
	w := &world{export: open(t, "null:1G", shared, each), clients: clients}
	w.export.clock = func() time.Duration { return w.now }
	for _, c := range clients {
		if c.session == nil {
			c.session = w.export.Session()
		}
		q, err := c.session.NewQueue(c.depth)
		if err != nil {
			t.Fatal(err)
		}
		c.queue = q
		for range c.depth {
			c.idle = append(c.idle, &block.Request{Op: block.Write, Length: c.length, Data: make([]byte, c.length)})
		}
	}
	return w
}

// close ends the world, so that several may be made in one test.
func (w *world) close(t testing.TB) {
	t.Helper()
	for _, c := range w.clients {
		if err := c.queue.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := w.export.Close(); err != nil {
		t.Error(err)
	}
}

// step lets a client do what its owner would: submit, reap, sleep.
func (w *world) step(t testing.TB, c *client) {
	var dst [64]*block.Request
	for {
		for len(c.idle) > 0 {
			r := c.idle[len(c.idle)-1]
			if !c.queue.Submit(r) {
				t.Fatal("submit was refused below the depth")
			}
			c.idle = c.idle[:len(c.idle)-1]
		}
		c.queue.Kick()
		n := c.queue.Reap(dst[:])
		for _, r := range dst[:n] {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			c.requests++
			c.bytes += float64(r.Length)
		}
		c.idle = append(c.idle, dst[:n]...)
		if n > 0 {
			continue
		}
		if d, ok := c.queue.Arm(); ok {
			if d < 0 {
				t.Fatal("a queue with requests that wait would sleep for ever")
			}
			c.due = w.now + d + c.late
			return
		}
	}
}

// run lets time pass until it is end.
func (w *world) run(t testing.TB, end time.Duration) {
	for {
		next := w.clients[0]
		for _, c := range w.clients {
			if c.due < next.due {
				next = c
			}
		}
		if next.due > end {
			w.now = end
			return
		}
		w.now = max(w.now, next.due)
		w.step(t, next)
	}
}

// within fails unless got is as near to want as the limits promise.
func within(t testing.TB, what string, got, want float64) {
	t.Helper()
	if got < 0.95*want || got > 1.05*want {
		t.Errorf("%s: %.0f, want %.0f", what, got, want)
	}
}

func TestRatesAreMet(t *testing.T) {
	for _, c := range []struct {
		rates  Rates
		depth  int
		length int64
	}{
		{Rates{Requests: 1000}, 1, 4096},
		{Rates{Requests: 1000}, 32, 4096},
		{Rates{Requests: 10_000}, 32, 4096},
		{Rates{Bytes: 100 << 20}, 1, 128 << 10},
		{Rates{Bytes: 100 << 20}, 32, 4096},
		{Rates{Bytes: 1 << 20}, 4, 64 << 10},
		{Rates{Requests: 1000, Bytes: 100 << 20}, 8, 4096},    // the requests are less
		{Rates{Requests: 1000, Bytes: 100 << 20}, 8, 1 << 20}, // the bytes are less
	} {
		for name, rates := range map[string][2]Rates{"export": {c.rates, {}}, "session": {{}, c.rates}} {
			t.Run(fmt.Sprintf("%s/%+v/%d of %d", name, c.rates, c.depth, c.length), func(t *testing.T) {
				one := &client{depth: c.depth, length: c.length}
				w := newWorld(t, rates[0], rates[1], one)
				defer w.close(t)
				w.run(t, 4*time.Second)
				want := float64(c.rates.Requests)
				if bytes := float64(c.rates.Bytes) / float64(c.length); want == 0 || bytes != 0 && bytes < want {
					want = bytes
				}
				within(t, "requests in 4 s", one.requests, 4*want)
			})
		}
	}
}

func TestBurstIsKeptAndSpent(t *testing.T) {
	one := &client{depth: 64, length: 512}
	w := newWorld(t, Rates{Requests: 100, Burst: 500 * time.Millisecond}, Rates{}, one)
	defer w.close(t)
	w.now = time.Hour // of idleness, which is worth no more than the burst
	one.due = w.now
	w.step(t, one)
	if one.requests != 51 {
		t.Errorf("%v requests at once, want those of 500 ms and the one that exceeds it", one.requests)
	}
}

// TestSessionsShare has sessions with a backlog beside slow ones.
func TestSessionsShare(t *testing.T) {
	for name, c := range map[string]struct {
		rates   Rates
		clients []*client
		share   func(*client) float64
	}{
		"deep and shallow": {
			Rates{Requests: 10_000},
			[]*client{{depth: 64, length: 512}, {depth: 1, length: 512}, {depth: 8, length: 512}},
			func(c *client) float64 { return c.requests / 10_000 },
		},
		"long and short": {
			Rates{Bytes: 64 << 20},
			[]*client{{depth: 8, length: 1 << 20}, {depth: 8, length: 4096}, {depth: 2, length: 64 << 10}},
			func(c *client) float64 { return c.bytes / (64 << 20) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.rates, Rates{}, c.clients...)
			defer w.close(t)
			w.run(t, 5*time.Second)
			for i, one := range c.clients {
				within(t, fmt.Sprintf("thousandths of the rate for client %d", i), 1000*c.share(one)/5, 1000/float64(len(c.clients)))
			}
		})
	}
}

// TestQueuesOfASession share what is one session's.
func TestQueuesOfASession(t *testing.T) {
	clients := []*client{{depth: 4, length: 512}, {depth: 4, length: 512}, {depth: 4, length: 512}, {depth: 4, length: 512}}
	w := newWorld(t, Rates{Requests: 10_000}, Rates{}, clients[0])
	defer w.close(t)
	for _, c := range clients[1:] { // three queues of another session
		c.session = clients[1].session
		if c.session == nil {
			c.session = w.export.Session()
		}
		q, err := c.session.NewQueue(c.depth)
		if err != nil {
			t.Fatal(err)
		}
		c.queue = q
		for range c.depth {
			c.idle = append(c.idle, &block.Request{Op: block.Read, Length: 512, Data: make([]byte, 512)})
		}
		clients[1].session = c.session
	}
	w.clients = clients
	w.run(t, 5*time.Second)
	within(t, "requests of the session with one queue", clients[0].requests, 25_000)
	within(t, "requests of the session with three", clients[1].requests+clients[2].requests+clients[3].requests, 25_000)
}

// TestLateOwnersShare has sessions whose owners wake up later than they want,
// as on a busy machine. More queues, and so more owners, gain nothing.
func TestLateOwnersShare(t *testing.T) {
	w := newWorld(t, Rates{Requests: 2000}, Rates{})
	defer w.close(t)
	one := w.addNamed(t, "one", 16)
	many := []*client{one}
	for range 4 {
		many = append(many, w.addNamed(t, "four", 16))
	}
	for i, c := range many {
		c.late = 3*time.Millisecond + time.Duration(i)*100*time.Microsecond
	}
	w.run(t, 5*time.Second)
	within(t, "requests of the client with one queue", one.requests, 5000)
}

// TestUnusedShareIsOthers: a limit of sessions leaves the rest to those without
// one in the way.
func TestUnusedShareIsOthers(t *testing.T) {
	slow, fast := &client{depth: 1, length: 64 << 10}, &client{depth: 8, length: 512}
	w := newWorld(t, Rates{Requests: 10_000}, Rates{Bytes: 16 << 20}, slow, fast)
	defer w.close(t)
	w.run(t, 10*time.Second)
	within(t, "requests of the session at its own limit", slow.requests, 10*256)
	within(t, "requests of the other", fast.requests, 10*(10_000-256))
}

// TestNeverAboveTheRate checks the promise behind all others, for any clients.
func TestNeverAboveTheRate(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		rates := Rates{
			Requests: rapid.Int64Range(0, 5000).Draw(r, "requests"),
			Bytes:    rapid.SampledFrom([]int64{0, 1 << 20, 32 << 20}).Draw(r, "bytes"),
			Burst:    time.Duration(rapid.IntRange(1, 200).Draw(r, "burst")) * time.Millisecond,
		}
		if !rates.Limited() {
			rates.Requests = 1
		}
		var clients []*client
		longest := int64(0)
		for range rapid.IntRange(1, 5).Draw(r, "clients") {
			c := &client{
				depth:  rapid.IntRange(1, 16).Draw(r, "depth"),
				length: rapid.SampledFrom([]int64{512, 4096, 128 << 10}).Draw(r, "length"),
			}
			longest = max(longest, c.length)
			clients = append(clients, c)
		}
		w := newWorld(t, rates, Rates{}, clients...)
		defer w.close(t)
		end := time.Duration(rapid.IntRange(1, 2000).Draw(r, "ms")) * time.Millisecond
		w.run(t, end)
		var requests, bytes float64
		for _, c := range clients {
			requests += c.requests
			bytes += c.bytes
		}
		seconds := (end + rates.Burst).Seconds()
		if most := float64(rates.Requests)*seconds + 2; rates.Requests > 0 && requests > most {
			r.Errorf("%v requests in %v, at most %v are allowed", requests, end, most)
		}
		if most := float64(rates.Bytes)*seconds + 2*float64(longest); rates.Bytes > 0 && bytes > most {
			r.Errorf("%v bytes in %v, at most %v are allowed", bytes, end, most)
		}
	})
}

func TestFlushDoesNotWait(t *testing.T) {
	w := newWorld(t, Rates{Requests: 1, Burst: time.Nanosecond}, Rates{})
	defer w.close(t)
	q, err := w.export.Session().NewQueue(3)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	first, waits := &block.Request{Op: block.Trim, Length: 512}, &block.Request{Op: block.Trim, Length: 512}
	flush := &block.Request{Op: block.Flush}
	for _, r := range []*block.Request{first, waits, flush} {
		if !q.Submit(r) {
			t.Fatal("submit was refused below the depth")
		}
	}
	q.Kick()
	var dst [4]*block.Request
	if n := q.Reap(dst[:]); n != 2 || dst[0] != first || dst[1] != flush {
		t.Errorf("%d requests are answered, want the first one and the flush", n)
	}
	w.now = time.Second
	if n := q.Reap(dst[:]); n != 1 || dst[0] != waits {
		t.Errorf("%d requests are answered after a second, want the one that waited", n)
	}
}

func TestValidate(t *testing.T) {
	for _, bad := range []Rates{
		{Requests: -1},
		{Requests: fastest + 1},
		{Bytes: -1},
		{Bytes: 10},
		{Burst: -1},
		{Burst: time.Hour},
	} {
		if _, err := NewExport(nil, bad, Rates{}); err == nil {
			t.Errorf("%+v is taken as the export's", bad)
		}
		if _, err := NewExport(nil, Rates{}, bad); err == nil {
			t.Errorf("%+v is taken as the sessions'", bad)
		}
	}
	for _, good := range []Rates{{}, {Requests: 1, Bytes: slowest, Burst: longest}, {Requests: fastest}} {
		if err := good.Validate(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}
