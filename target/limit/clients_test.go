package limit

import (
	"fmt"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// addNamed adds a queue of a named client to a world.
func (w *world) addNamed(t testing.TB, name string, depth int) *client {
	t.Helper()
	q, err := block.NewQueueFor(w.export, name, depth)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{queue: q, depth: depth, length: 512, due: w.now}
	for range depth {
		c.idle = append(c.idle, &block.Request{Op: block.Read, Length: 512, Data: make([]byte, 512)})
	}
	w.clients = append(w.clients, c)
	return c
}

// More connections of a client do not increase its share.
func TestClientsShareByName(t *testing.T) {
	w := newWorld(t, Rates{Requests: 10_000}, Rates{})
	defer w.close(t)
	one := w.addNamed(t, "one", 4)
	var four []*client
	for range 4 {
		four = append(four, w.addNamed(t, "four", 4))
	}
	w.run(t, 5*time.Second)
	within(t, "requests of the client with one queue", one.requests, 25_000)
	within(t, "requests of the client with four", four[0].requests+four[1].requests+four[2].requests+four[3].requests, 25_000)

	status := w.export.Status()
	if len(status.Clients) != 2 || status.Clients[0].Client != "four" || status.Clients[0].Queues != 4 || status.Clients[1].Queues != 1 {
		t.Fatalf("the status has %+v", status.Clients)
	}
	within(t, "counted requests of the client with four", float64(status.Clients[0].Requests), 25_000)
	if status.Requests != status.Clients[0].Requests+status.Clients[1].Requests || status.Bytes != 512*status.Requests {
		t.Errorf("the sum is %+v, of %+v", status.Counters, status.Clients)
	}
	if status.Elapsed != w.now {
		t.Errorf("after %v, not %v", status.Elapsed, w.now)
	}
}

// A client that leaves and comes again has used what it has used. The limit
// drops the requests that it left in its queue, and they cost nothing.
func TestLeavingGainsNothing(t *testing.T) {
	for name, rates := range map[string][2]Rates{
		"export": {{Requests: 100, Burst: time.Nanosecond}, {}}, "session": {{}, {Requests: 100, Burst: time.Nanosecond}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, rates[0], rates[1])
			defer w.close(t)
			w.now = time.Second
			for range 50 { // in no time
				c := w.addNamed(t, "reconnecting", 10)
				w.step(t, c)
				if err := c.queue.Close(); err != nil {
					t.Fatal(err)
				}
				w.clients = nil
			}
			if used := w.export.Status().Requests; used != 1 {
				t.Fatalf("%d requests were let through", used)
			}
			c := w.addNamed(t, "reconnecting", 1)
			w.run(t, 2*time.Second)
			within(t, "requests afterwards", c.requests, 100)
		})
	}
}

// Clients that are gone are forgotten when it makes no difference, and when
// there are too many.
func TestClientsAreForgotten(t *testing.T) {
	comeAndGo := func(w *world, name string) {
		c := w.addNamed(t, name, 4)
		w.step(t, c)
		if err := c.queue.Close(); err != nil {
			t.Fatal(err)
		}
		w.clients = nil
	}
	w := newWorld(t, Rates{Requests: 1000}, Rates{})
	defer w.close(t)
	for i := range 100 {
		comeAndGo(w, fmt.Sprint(i))
		w.now += time.Second
	}
	if n := len(w.export.Status().Clients); n != 1 {
		t.Errorf("%d clients are remembered, want the last one", n)
	}
	for i := range 3 * mostClients {
		comeAndGo(w, fmt.Sprint(i))
	}
	if n := len(w.export.Status().Clients); n > mostClients {
		t.Errorf("%d clients are remembered", n)
	}
	stays := w.addNamed(t, "stays", 1)
	for i := range 2 * mostClients {
		w.clients = []*client{stays}
		comeAndGo(w, fmt.Sprint(i))
	}
	w.clients = []*client{stays}
	if s := w.export.clients["stays"]; s == nil || s.queues != 1 {
		t.Errorf("a client with a queue is forgotten: %+v", s)
	}
}

// Throttled requests and their waits are counted to the nanosecond.
func TestThrottledRequestsAreCounted(t *testing.T) {
	w := newWorld(t, Rates{Requests: 10, Burst: time.Nanosecond}, Rates{})
	defer w.close(t)
	c := w.addNamed(t, "client", 4)
	w.step(t, c) // the first goes at once, then one each 100 ms, and each is asked again
	c.idle = nil
	status := w.export.Status()
	if status.Requests != 1 || status.Throttled != 0 || status.Waited != 0 {
		t.Errorf("after one request: %+v", status.Counters)
	}
	var dst [4]*block.Request
	for i := range 3 {
		w.now = time.Duration(i+1) * 100 * time.Millisecond
		if n := c.queue.Reap(dst[:]); n != 1 {
			t.Fatalf("%d requests at %v", n, w.now)
		}
	}
	status = w.export.Status()
	want := Counters{Requests: 4, Bytes: 4 * 512, Throttled: 3, Waited: 600 * time.Millisecond}
	if status.Counters != want || status.Clients[0].Counters != want {
		t.Errorf("%+v and %+v, want %+v", status.Counters, status.Clients[0].Counters, want)
	}
}
