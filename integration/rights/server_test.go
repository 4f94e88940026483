package rights

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/roce"
	"github.com/viablk/viablk/via/shm"
)

// testTimeout bounds every wait.
const testTimeout = 20 * time.Second

// export is an export with its lists.
type export struct {
	name              string
	clients, readOnly []string
}

// site is a target with its listeners: the same exports at each.
type site struct {
	t       *testing.T
	folder  string // that other users may enter
	tcp     string
	roce    string                 // in clear
	sealed  string                 // over RoCE, with certificates
	server  *tls.Config            // certificates of the target
	clients map[string]*tls.Config // by name; "" has no certificate
}

// newSite serves exports at every kind of listener, until the test ends. The
// guests may connect to its sockets, RoCE has the UDP port
// and the next one.
func newSite(t *testing.T, port int, guests []uint32, exports ...export) *site {
	t.Helper()
	folder, err := os.MkdirTemp("", "rights") // a test's own folder is closed to others
	must(t, err)
	must(t, os.Chmod(folder, 0o755))
	t.Cleanup(func() { must(t, os.RemoveAll(folder)) })
	s := &site{t: t, folder: folder, clients: make(map[string]*tls.Config)}
	s.server = s.certificates()
	s.serveNBD(guests, s.server, exports)
	s.serveVIA(shm.New(shm.Options{AdmitUIDs: guests}), s.shm(), nil, exports)
	s.roce, s.sealed = fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", port+1)
	s.serveVIA(roce.New(roce.Options{}), s.roce, nil, exports)
	s.serveVIA(roce.New(roce.Options{}), s.sealed, &handshake.Guard{TLS: s.server}, exports)
	return s
}

func (s *site) shm() string  { return filepath.Join(s.folder, "via") }
func (s *site) unix() string { return filepath.Join(s.folder, "nbd") }

// background runs f until the test ends.
func (s *site) background(f func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (s *site) rights(e export) *access.Rights {
	r, err := access.Parse(e.clients, e.readOnly)
	must(s.t, err)
	return r
}

// serveNBD serves NBD over TCP, where clients may use TLS, and over a socket.
func (s *site) serveNBD(guests []uint32, certificates *tls.Config, exports []export) {
	var list []nbd.Export
	for _, e := range exports {
		device, err := backend.Open("memory:1MiB", backend.Options{})
		must(s.t, err)
		s.t.Cleanup(func() { must(s.t, device.Close()) })
		list = append(list, nbd.Export{Name: e.name, Device: device, Rights: s.rights(e)})
	}
	table, err := nbd.NewExports(list...)
	must(s.t, err)
	limits := nbd.Limits{Options: 1 << 30}
	tcp, err := nbd.Listen(s.t.Context(), "tcp", "127.0.0.1:0")
	must(s.t, err)
	s.tcp = tcp.Addr().String()
	unix, err := nbd.ListenForGuests(s.t.Context(), s.unix(), guests)
	must(s.t, err)
	for _, l := range []net.Listener{tcp, unix} {
		server := &nbd.Server{Exports: table, Limits: limits}
		if l == tcp {
			server.TLS = nbd.TLS{Config: certificates}
		}
		s.background(func(ctx context.Context) { _ = server.Serve(ctx, l) }) // the end of ctx
	}
}

// certificates issues those of the server and the clients.
func (s *site) certificates() *tls.Config {
	at := func(name string) string { return filepath.Join(s.t.TempDir(), name) }
	ca := at("ca")
	must(s.t, pki.Init(ca, "test authority", time.Hour))
	server := at("server")
	must(s.t, pki.Issue(ca, pki.Server, []string{"localhost"}, server, time.Hour))
	for _, name := range []string{"alice", "mallory"} {
		folder := at(name)
		must(s.t, pki.Issue(ca, pki.Client, []string{name}, folder, time.Hour))
		config, err := pki.ClientConfig(folder, "localhost", true)
		must(s.t, err)
		s.clients[name] = config
	}
	certificates, err := pki.NewServerCertificates(server, true)
	must(s.t, err)
	return certificates.Config()
}

// serveVIA serves VIA at a host of a provider, in sealed sessions with
// security.
func (s *site) serveVIA(p via.Provider, host string, security *handshake.Guard, exports []export) {
	cfg := target.Config{NIC: openNIC(s.t, p), KeepAlive: time.Hour, Security: security, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, e := range exports {
		device, err := backend.Open("memory:1MiB", backend.Options{})
		must(s.t, err)
		s.t.Cleanup(func() { must(s.t, device.Close()) })
		cfg.Exports = append(cfg.Exports, target.Export{Name: e.name, Device: device, Rights: s.rights(e)})
	}
	s.t.Cleanup(func() { must(s.t, cfg.NIC.Close()) })
	server, err := target.New(cfg)
	must(s.t, err)
	l, err := server.Listen(host)
	must(s.t, err)
	s.background(func(ctx context.Context) {
		if err := server.Serve(ctx, l); err != nil {
			s.t.Error(err)
		}
	})
}

// nic opens a device of a provider until the test ends.
func openNIC(t testing.TB, p via.Provider) *via.NIC {
	t.Helper()
	nic, err := via.OpenNic(p, "")
	must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	return nic
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
