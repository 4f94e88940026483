package viatest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/via"
)

// caseTimeout is how long the kit waits for an event that must happen. It
// decides nothing but failure.
const caseTimeout = time.Minute

// env is a running case.
type env struct {
	t        testing.TB
	open     Open
	f        *Fabric
	level    via.ReliabilityLevel // of the case's connections
	client   *end
	server   *end
	services int    // discriminators used
	marked   uint32 // marking messages sent
}

func newEnv(t testing.TB, open Open, decorate func(via.Provider) via.Provider, level via.ReliabilityLevel) *env {
	t.Helper()
	e := &env{t: t, open: open, f: open(t, decorate), level: level}
	e.client = newEnd(e, "client", e.f.Client)
	e.server = newEnd(e, "server", e.f.Server)
	t.Cleanup(e.close)
	return e
}

// close closes both NICs, if the case did not.
func (e *env) close() {
	e.client.close()
	e.server.close()
}

// unreliable reports whether messages may be lost and errors cost no
// connection.
func (e *env) unreliable() bool { return e.level == via.UnreliableDelivery }

// service returns an address that no other connection of the case uses.
func (e *env) service() via.Address {
	e.services++
	return e.f.Address(fmt.Sprintf("service-%d", e.services))
}

// check fails the case if err is not nil.
func (e *env) check(err error, doing string) {
	e.t.Helper()
	if err != nil {
		e.t.Fatalf("%s: %v", doing, err)
	}
}

// wants fails the case unless err wraps a return code.
func (e *env) wants(err, code error, doing string) {
	e.t.Helper()
	if !errors.Is(err, code) {
		e.t.Fatalf("%s: got error %v, want %v", doing, err, code)
	}
}

// until polls both ends until cond holds. The calling goroutine drives the VIs
// of both.
func (e *env) until(what string, cond func() bool) {
	e.t.Helper()
	e.untilBy(what, cond, e.client, e.server)
}

// untilBy polls some ends until cond holds.
func (e *env) untilBy(what string, cond func() bool, ends ...*end) {
	e.t.Helper()
	idle := 0
	for deadline := time.Now().Add(caseTimeout); !cond(); {
		moved := 0
		for _, x := range ends {
			moved += x.poll()
		}
		if moved != 0 {
			idle = 0
			continue
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("timed out waiting for %s; client: %v; server: %v", what, e.client, e.server)
		}
		if idle++; idle < busyPolls {
			pause()
		} else {
			time.Sleep(nap)
		}
	}
}

// Empty polls after which a wait yields the processor, and for how long at a
// time: until a fabric declares its peer dead there is nothing to do.
const (
	busyPolls = 500
	nap       = 50 * time.Microsecond
)

// atOnce is how many parts of a case run at the same time.
const atOnce = 6

// together runs parts of a case, which are tests of their own with devices of
// their own, at the same time: most of the handling of a fault is waiting.
func together(parts int, run func(i int)) {
	var wait sync.WaitGroup
	tokens := make(chan struct{}, atOnce)
	for i := range parts {
		tokens <- struct{}{}
		wait.Go(func() {
			defer func() { <-tokens }()
			run(i)
		})
	}
	wait.Wait()
}

// drain polls an end until the fabric holds nothing for it, at the level where
// a fabric without room discards messages.
func (e *env) drain(x *end) {
	for e.unreliable() && x.poll() != 0 {
	}
}

// quiet polls both ends for a while in which nothing may complete.
func (e *env) quiet(what string) {
	e.t.Helper()
	for range 200 {
		if n := e.client.poll() + e.server.poll(); n != 0 {
			e.t.Fatalf("%s: %d completions, want none; client: %v; server: %v", what, n, e.client, e.server)
		}
		pause()
	}
}
