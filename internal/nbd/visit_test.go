package nbd

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/loop"
)

// transmission returns a transmission to drive by hand, and its client.
func (f *fixture) transmission() (*transmission, *peer) {
	f.t.Helper()
	l, err := net.Listen("unix", f.path+".hand")
	if err != nil {
		f.t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", f.path+".hand")
	if err != nil {
		f.t.Fatal(err)
	}
	nc, err := l.Accept()
	if err != nil {
		f.t.Fatal(err)
	}
	c := newConn(f.server, nc)
	export, err := f.server.Exports.Export("")
	if err != nil {
		f.t.Fatal(err)
	}
	s, err := c.open(granted{Export: export}, access.Identity{})
	if err != nil {
		f.t.Fatal(err)
	}
	nc.Close()
	t := newTransmission(c, s)
	t.acquireBuffers()
	f.t.Cleanup(func() {
		t.releaseAll()
		c.close(s)
	})
	return t, newPeer(f.t, client)
}

// TestVisitsAreShares: however much a client sends, and however fast it takes
// replies, a visit does a share of it and is followed by others; all is
// answered in the end.
func TestVisitsAreShares(t *testing.T) {
	for name, length := range map[string]uint32{"small": 512, "large": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, Limits{}, Export{Device: newMemory(4 << 20)})
			tr, p := f.transmission()
			const rounds, batch = 8, 64
			var ends sync.WaitGroup
			ends.Go(func() {
				var stream []byte
				for i := range uint64(batch) {
					stream = append(stream, p.request(0, cmdRead, i, 0, length)...)
				}
				for range rounds {
					if _, err := p.Write(stream); err != nil {
						t.Error(err)
					}
				}
			})
			want := int64(rounds * batch * (simpleReplySize + length))
			ends.Go(func() {
				if n, err := io.CopyN(io.Discard, p, want); err != nil {
					t.Errorf("%d bytes of replies: %v", n, err)
				}
			})
			most := uint64(0)
			for tr.out.total < uint64(want) {
				before, iterations := tr.in.total+tr.out.total, tr.iterations
				tr.wakers.client.Ready, tr.wakers.client.Writable = true, true
				next, err := tr.visit(loop.Round{})
				if err != nil || next.Done {
					t.Fatalf("the visit ends the connection: %v", err)
				}
				if n := tr.iterations - iterations; n > visitIterations {
					t.Errorf("%d iterations in a visit", n)
				}
				most = max(most, tr.in.total+tr.out.total-before)
			}
			ends.Wait()
			// The last send begins below a share, and takes the kernel's buffer
			// at most.
			if limit := uint64(2*visitBytes + 2*sendBuffer); most > limit {
				t.Errorf("%d bytes in a visit, at most %d are a share", most, limit)
			}
		})
	}
}
