package nbd

import (
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// namingDevice is a device that notes for whom its queues are opened.
type namingDevice struct {
	*memory
	mu     sync.Mutex
	guests []string
}

func (g *namingDevice) NewQueueFor(client string, depth int) (block.Queue, error) {
	g.mu.Lock()
	g.guests = append(g.guests, client)
	g.mu.Unlock()
	return g.NewQueue(depth)
}

func (g *namingDevice) want(t *testing.T, guests ...string) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.guests, guests) {
		t.Errorf("the guests are %q, not %q", g.guests, guests)
	}
	g.guests = nil
}

// Devices that tell clients apart are told who comes, the same each time.
func TestDeviceIsToldWhoComes(t *testing.T) {
	g := &namingDevice{memory: newMemory(1 << 20)}
	self := fmt.Sprintf("process %d of user %d", os.Getpid(), os.Getuid())
	t.Run("unix", func(t *testing.T) {
		f := serve(t, Limits{}, Export{Name: "disk", Device: g})
		f.connectExport("disk", simple)
		f.connectExport("disk", extended)
		g.want(t, self, self)
		p := f.dial()
		p.greet(bothFlags)
		p.option(optExportName, []byte("disk"))
		p.get(8 + 2)
		g.want(t, self)
	})
	t.Run("certificate", func(t *testing.T) {
		f := serveTLS(t, TLS{Config: certificates(t).server}, Limits{}, Export{Name: "disk", Device: g})
		for _, name := range []string{"bob", "alice", "bob"} {
			p := f.dial()
			p.greet(bothFlags)
			p.startTLS(name)
			p.option(optGo, nbdtest.GoData("disk"))
			p.infos(optGo)
		}
		g.want(t, "certificate bob", "certificate alice", "certificate bob")
	})
	t.Run("certificate without a name", func(t *testing.T) {
		f := serveTLS(t, TLS{Config: certificates(t).lenient}, Limits{}, Export{Name: "disk", Device: g})
		p := f.dial()
		p.greet(bothFlags)
		p.startTLS("alice")
		p.option(optGo, nbdtest.GoData("disk"))
		p.infos(optGo)
		g.want(t, self)
	})
	t.Run("certificate that is not verified", func(t *testing.T) {
		unchecked := certificates(t).lenient.Clone()
		unchecked.ClientAuth = tls.RequireAnyClientCert
		f := serveTLS(t, TLS{Config: unchecked}, Limits{}, Export{Name: "disk", Device: g})
		p := f.dial()
		p.greet(bothFlags)
		p.startTLS("alice")
		p.option(optGo, nbdtest.GoData("disk"))
		p.infos(optGo)
		g.want(t, self)
	})
	t.Run("tcp", func(t *testing.T) {
		s := &Server{Exports: mustExports(t, Export{Name: "disk", Device: g})}
		l, err := Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(t.Context(), l) }()
		for range 2 {
			p := dial(t, l.Addr())
			p.greet(bothFlags)
			p.option(optGo, nbdtest.GoData(""))
			p.infos(optGo)
			p.disconnect()
		}
		if err := s.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		g.want(t, "address 127.0.0.1", "address 127.0.0.1")
	})
	t.Run("socket pair", func(t *testing.T) {
		server, client := pair(t)
		ended := make(chan error, 1)
		go func() { ended <- new(Server).ServeConn(t.Context(), server, &Export{Device: g}, nil) }()
		newPeer(t, client).disconnect()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		g.want(t, self)
	})
}

func mustExports(t *testing.T, exports ...Export) Exports {
	t.Helper()
	table, err := NewExports(exports...)
	if err != nil {
		t.Fatal(err)
	}
	return table
}
