package nbdclient

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target/backend"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diskSize is the size of the disks of the kit, in bytes: more than the longest
// payload.
const diskSize = block.PayloadLimit + 8<<20

// address is where a server listens.
type address struct {
	network, at string
	tls         *tls.Config // of clients; nil without TLS
	export      string
}

// config returns how a client reaches the server.
func (a address) config() Config {
	return Config{
		Name: a.at,
		Connect: func(ctx context.Context) (*nbd.Opened, error) {
			conn, err := new(net.Dialer).DialContext(ctx, a.network, a.at)
			if err != nil {
				return nil, err
			}
			return nbd.Client{TLS: a.tls}.Open(ctx, conn, a.export)
		},
	}
}

// open opens the export.
func (a address) open(t testing.TB) block.Device {
	t.Helper()
	return mustOpen(t, a.config())
}

func mustOpen(t testing.TB, cfg Config) *Device {
	t.Helper()
	d, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// process is a server of another project.
type process struct {
	address
	command *exec.Cmd
	ended   chan struct{}
}

// start starts a program that serves a socket, and waits until it does.
func start(t testing.TB, socket, name string, args ...string) *process {
	t.Helper()
	p := &process{address: address{network: "unix", at: socket}, command: exec.Command(name, args...), ended: make(chan struct{})}
	p.command.Stderr = os.Stderr
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.command.Wait() // it is killed
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	for {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
			return p
		}
		select {
		case <-p.ended:
			t.Fatalf("%s ended before it served %s", name, socket)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// kill ends the server, as a crash does.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// nbdkit starts an nbdkit with a disk in memory.
func nbdkit(t testing.TB, args ...string) *process {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	return start(t, socket, "nbdkit", append([]string{"-f", "-U", socket}, args...)...)
}

// qemu starts a qemu-nbd with a new file.
func qemu(t testing.TB, args ...string) *process {
	t.Helper()
	folder := t.TempDir()
	socket, file := filepath.Join(folder, "socket"), filepath.Join(folder, "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, diskSize); err != nil {
		t.Fatal(err)
	}
	return start(t, socket, "qemu-nbd", append([]string{"-k", socket, "-t", "-f", "raw", file}, args...)...)
}

// ours serves a disk with the server of this module.
func ours(t testing.TB, network string, server nbd.TLS, spec string) address {
	t.Helper()
	device, err := backend.Open(spec, backend.Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "socket")
	if network == "tcp" {
		at = "localhost:0"
	}
	l, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	exports, err := nbd.NewExports(nbd.Export{Name: "disk", Device: device})
	if err != nil {
		t.Fatal(err)
	}
	s := &nbd.Server{TLS: server, Exports: exports}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(ctx, l) // its end is that of ctx
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if err := device.Close(); err != nil {
			t.Error(err)
		}
	})
	return address{network: network, at: l.Addr().String(), export: "disk"}
}

// inMemory is the specification of a disk of the kit, behind wrappers.
func inMemory(wrappers string) string { return fmt.Sprintf("%smemory:%d", wrappers, diskSize) }
