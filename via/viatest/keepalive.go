package viatest

import "sync"

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
	for range 3 {
		for _, x := range []struct{ by, to *end }{{e.client, e.server}, {e.server, e.client}} {
			e.rests(x.to)
			before, peer := x.by.vi.Life(), x.to.vi.Life()
			x.by.vi.KeepAlive()
			if x.to.vi.Life() == peer {
				e.t.Errorf("the %s does not see a keepalive", x.to.name)
			}
			if x.by.vi.Life() != before {
				e.t.Errorf("a keepalive of the %s changes its Life", x.by.name)
			}
			if e.readable(x.to.cq.FD()) {
				e.t.Errorf("a keepalive wakes the %s", x.to.name)
			}
		}
	}
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
