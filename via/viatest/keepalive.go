package viatest

import "sync"

// keepsQuiet checks that keepalives by an end show the other one life and do
// not wake it. A provider may wake it once or twice while it completes the
// connection: over shared memory, when the peer's ready log arrives.
func (e *env) keepsQuiet(by, to *end) {
	e.t.Helper()
	const keepalives, others = 12, 2
	woken := 0
	for range keepalives {
		e.rests(to)
		before, peer := by.vi.Life(), to.vi.Life()
		by.vi.KeepAlive()
		if to.vi.Life() == peer {
			e.t.Errorf("the %s does not see a keepalive", to.name)
		}
		if by.vi.Life() != before {
			e.t.Errorf("a keepalive of the %s changes its Life", by.name)
		}
		if e.readable(to.cq.FD()) {
			woken++
		}
	}
	if woken > others {
		e.t.Errorf("the %s woke in %d of %d keepalives", to.name, woken, keepalives)
	}
}

func quietKeepalives(e *env) {
	e.connect()
	client, server := e.client.vi, e.server.vi
	offered := client.KeepAlive()
	if server.KeepAlive() != offered {
		e.t.Fatalf("one end alone has keepalives without a message")
	}
	if !offered {
		return
	}
	e.keepsQuiet(e.client, e.server)
	e.keepsQuiet(e.server, e.client)
	// Messages show life themselves.
	here, there := client.Life(), server.Life()
	r, s := e.server.recv(), e.client.send()
	e.ok(e.client, s)
	e.ok(e.server, r)
	if client.Life() != here || server.Life() != there {
		e.t.Errorf("a message changes Life: it went from %d, %d to %d, %d", here, there, client.Life(), server.Life())
	}

	// Keepalives at the end of the connection.
	var others sync.WaitGroup
	stop := make(chan struct{})
	for _, by := range []*end{e.client, e.server} {
		vi := by.vi
		others.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					vi.KeepAlive()
					vi.Life()
				}
			}
		})
	}
	e.check(client.Disconnect(), "disconnect the client")
	e.check(server.Disconnect(), "disconnect the server")
	close(stop)
	others.Wait()
	last := client.Life()
	server.KeepAlive()
	if client.Life() != last {
		e.t.Errorf("a keepalive of a connection that has ended arrives")
	}
}
