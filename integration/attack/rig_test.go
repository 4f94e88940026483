package attack

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/pki"
	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via"
)

// exportName is long enough to be found nowhere by chance.
const exportName = "the-secret-name-of-a-disk"

const (
	diskSize        = 16 << 20
	certificateLife = time.Hour
)

// scene is a target and the NIC of its initiators, with an attacker between.
type scene struct {
	fabric testbed.Fabric
	by     *attacker
	limits seal.Limits
	rekey  time.Duration // initiator.Config.RekeyInterval
	folder string        // of certificates; "" is sessions in clear
	secure func() (handshake.Config, error)

	certificates *pki.ServerCertificates
	host         string
	nic          *via.NIC
	cfg          target.Config
	server       *target.Server
	stop         func()
}

// newScene serves a disk in a file.
func newScene(t testing.TB, f testbed.Fabric, by *attacker, sealed bool, limits seal.Limits) *scene {
	t.Helper()
	return newSceneOf(t, f, by, sealed, limits, "file:"+testbed.SparseFile(t, diskSize))
}

// newSceneOf serves a disk by its specification.
func newSceneOf(t testing.TB, f testbed.Fabric, by *attacker, sealed bool, limits seal.Limits, spec string) *scene {
	t.Helper()
	s := &scene{fabric: f, by: by, limits: limits, host: f.Host(t)}
	s.secure = s.security
	log := slog.New(slog.DiscardHandler)
	if os.Getenv("ATTACK_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	d, err := backend.Open(spec, backend.Options{})
	testbed.Must(t, err)
	s.cfg = target.Config{Exports: []target.Export{{Name: exportName, Device: d}}, Log: log, KeepAlive: 150 * time.Millisecond}
	if sealed {
		s.folder = testbed.Certificates(t, "alice")
		var err error
		s.certificates, err = pki.NewServerCertificates(filepath.Join(s.folder, "server"), true)
		testbed.Must(t, err)
		s.cfg.Security = &handshake.Guard{TLS: s.certificates.Config(), Limits: limits}
	}
	s.nic = s.open(t)
	s.start(t)
	t.Cleanup(func() {
		s.stop()
		testbed.Must(t, s.nic.Close())
		testbed.Must(t, d.Close())
	})
	return s
}

func (s *scene) open(t testing.TB) *via.NIC {
	t.Helper()
	nic, err := via.OpenNic(s.by.over(s.fabric.Provider()), "")
	testbed.Must(t, err)
	nic.ErrorCallback(func(via.AsyncError) {})
	return nic
}

// start begins to serve, also after stop.
func (s *scene) start(t testing.TB) {
	t.Helper()
	s.cfg.NIC = s.open(t)
	var err error
	s.server, err = target.New(s.cfg)
	testbed.Must(t, err)
	l, err := s.server.Listen(s.host)
	testbed.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served, nic := make(chan error, 1), s.cfg.NIC
	go func() { served <- s.server.Serve(ctx, l) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		testbed.Must(t, <-served)
		testbed.Must(t, nic.Close())
	})
}

// lengthenKeepAlive has no end take a busy machine for one that is silent.
func (s *scene) lengthenKeepAlive(t testing.TB) {
	t.Helper()
	s.stop()
	s.cfg.KeepAlive = time.Minute
	s.start(t)
}

// dial opens the disk, for as long as it takes.
func (s *scene) dial(t testing.TB) *initiator.Device {
	t.Helper()
	return s.dialAs(t, func(*initiator.Config) {})
}

// dialAs is dial with another configuration.
func (s *scene) dialAs(t testing.TB, change func(*initiator.Config)) *initiator.Device {
	t.Helper()
	cfg := initiator.Config{
		NIC: s.nic, Host: s.host, Export: exportName, Log: s.cfg.Log, Exclusive: false,
		LossTimeout: initiator.Forever, ReconnectDelay: time.Millisecond, PoolBytes: 8 << 20,
		RekeyInterval: s.rekey,
	}
	if s.folder != "" {
		cfg.Security = s.secure
	}
	change(&cfg)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		d, err := initiator.Dial(ctx, cfg)
		if err == nil {
			return d
		}
		if s.by.change == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
	}
}

// security is that of the initiator.
func (s *scene) security() (handshake.Config, error) {
	c, err := pki.ClientConfig(filepath.Join(s.folder, "alice"), "localhost", true)
	return handshake.Config{TLS: c, Limits: s.limits}, err
}

// disk is a device and what must be on it.
type disk struct {
	*initiator.Device
	model []byte
}

// write writes data to the disk and the model.
func (d *disk) write(t testing.TB, data []byte, off int) {
	t.Helper()
	if _, err := d.WriteAt(data, int64(off)); err != nil {
		t.Fatalf("write %d bytes at %d: %v", len(data), off, err)
	}
	copy(d.model[off:], data)
}

// verify reads a part of the disk.
func (d *disk) verify(t testing.TB, n, off int) {
	t.Helper()
	got := make([]byte, n)
	if _, err := d.ReadAt(got, int64(off)); err != nil {
		t.Fatalf("read %d bytes at %d: %v", n, off, err)
	}
	if !bytes.Equal(got, d.model[off:off+n]) {
		t.Fatalf("%d bytes at %d are not those that were written", n, off)
	}
}

// sizes move in every way: inline, one record, several, several commands.
var sizes = []int{512, 4096, 8192, 64 << 10, 200 << 10, 3 << 20}

// waitFor polls until a condition holds.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s", what)
		}
	}
}
