package backend

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/identity"
	"github.com/viablk/viablk/target/reserve"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/viatest/loopback"
	"golang.org/x/sys/unix"
)

// plant is a bug that the model has to find.
type plant string

const (
	sound            plant = ""
	nameAsUUID       plant = "name as UUID"
	noGeneration     plant = "no writer generation"
	lossNotCounted   plant = "loss not counted"
	lossCountedLate  plant = "loss counted after the answer"
	failureForgotten plant = "failure forgotten at the end of the process"
	notMarkedUnclean plant = "record not marked unclean"
	noLossCounter    plant = "verifier without loss counter"
)

// planted is the identity of a disk with a bug.
type planted struct {
	block.Identity
	plant plant
}

func (p planted) UUID() [16]byte {
	if p.plant == nameAsUUID {
		return [16]byte{'d', 'i', 's', 'k'}
	}
	return p.Identity.UUID()
}

func (p planted) Verifier() uint64 {
	if p.plant == noLossCounter {
		return 1
	}
	return p.Identity.Verifier()
}

func (p planted) Writer() block.Writer {
	if p.plant == noGeneration {
		return block.Writer{}
	}
	return p.Identity.Writer()
}

// identified is a device with another identity.
type identified struct {
	block.Device
	id block.Identity
}

func (d identified) Identity() block.Identity { return d.id }

// machine is the target's machine: a process that serves a disk over two
// providers, or none.
type machine struct {
	t      testing.TB
	plant  plant
	path   string
	boot   [16]byte
	boots  int
	medium *medium // the file at path
	device *file   // nil: no process
	late   []func()
	disk   *reserve.Disk
	one    *port
	two    *port
}

// port is a provider of the machine. A server is there between start and stop.
type port struct {
	target, initiator *via.NIC
	server            *target.Server
	cancel            context.CancelFunc
	served            chan error
}

func newPort(t testing.TB) *port {
	t.Helper()
	network := loopback.New()
	p := &port{}
	for _, nic := range []**via.NIC{&p.target, &p.initiator} {
		n, err := via.OpenNic(network, "")
		if err != nil {
			t.Fatal(err)
		}
		n.ErrorCallback(func(via.AsyncError) {})
		*nic = n
	}
	return p
}

func (p *port) close(t testing.TB) {
	t.Helper()
	for _, nic := range []*via.NIC{p.target, p.initiator} {
		if err := nic.Close(); err != nil {
			t.Error(err)
		}
	}
}

// limits are what a target grants.
type limits struct{ inline, maxIO int }

// start serves a disk.
func (p *port) start(t testing.TB, d block.Device, reservations *reserve.Disk, l limits) {
	t.Helper()
	var err error
	p.server, err = target.New(target.Config{
		NIC: p.target, Depth: 4, InlineMax: l.inline, MaxIO: l.maxIO, PoolBytes: l.maxIO, KeepAlive: time.Hour, BusyPoll: -1,
		Exports: []target.Export{{Name: "disk", Device: d, Reservations: reservations}},
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := p.server.Listen("target")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.served = cancel, make(chan error, 1)
	server, served := p.server, p.served
	go func() { served <- server.Serve(ctx, listener) }()
}

// stop ends the server as a killed process does: no client is told.
func (p *port) stop(t testing.TB) {
	t.Helper()
	if p.cancel == nil {
		return
	}
	p.cancel()
	if err := <-p.served; err != nil {
		t.Error(err)
	}
	p.cancel = nil
}

// drain ends the server as SIGTERM does.
func (p *port) drain(t testing.TB) {
	t.Helper()
	if p.cancel == nil {
		return
	}
	if err := p.server.Drain(context.Background()); err != nil {
		t.Error(err)
	}
	p.stop(t)
}

// reboot starts the machine again.
func (m *machine) reboot() {
	m.boots++
	binary.LittleEndian.PutUint64(m.boot[:], uint64(m.boots))
}

// open starts a process that opens the disk.
func (m *machine) open() {
	m.t.Helper()
	d, err := openFile(m.path, fileOptions{lock: true, identity: true, io: ioThreads, workers: 1, boot: m.boot}, m.medium)
	if err != nil {
		m.t.Fatal(err)
	}
	m.device = d.(*file)
	switch lost := m.device.latch.Lost; m.plant {
	case lossNotCounted:
		m.device.latch.Lost = func(error) {}
	case lossCountedLate:
		m.device.latch.Lost = func(cause error) { m.late = append(m.late, func() { lost(cause) }) }
	case failureForgotten:
		m.device.latch = block.Latch{Lost: lost}
	}
	m.disk = reserve.New(identified{m.device, planted{m.device.identity, m.plant}}, nil)
}

// accept is what a person does about a disk whose flush failed.
func (m *machine) accept() {
	m.t.Helper()
	l, err := Lock(m.path, Options{})
	if err != nil {
		m.t.Fatal(err)
	}
	defer l.Close()
	o := l.Identity()
	o.Boot = m.boot
	if _, err := identity.Accept(o); err != nil && m.plant == sound {
		m.t.Error(err)
	}
}

// serve serves the open disk over the first provider.
func (m *machine) serve(l limits) {
	m.t.Helper()
	m.one.start(m.t, m.device, m.disk, l)
}

// counted counts a loss that a bug has delayed.
func (m *machine) counted() {
	for _, count := range m.late {
		count()
	}
	m.late = nil
}

// kill ends the process at once.
func (m *machine) kill() {
	m.t.Helper()
	m.one.stop(m.t)
	m.two.stop(m.t)
	m.late = nil
	if m.device == nil {
		return
	}
	kill(m.t, m.device)
	m.device = nil
	if m.plant == notMarkedUnclean {
		m.markClean()
	}
}

// markClean makes a record that says that the disk was closed as it is.
func (m *machine) markClean() {
	r := m.medium.record(m.t)
	if r == nil {
		return
	}
	le := binary.LittleEndian
	le.PutUint32(r[12:], le.Uint32(r[12:])&^1)
	le.PutUint64(r[120:], uint64(m.medium.times(m.t).UnixNano()))
	le.PutUint32(r[128:], crc32.Checksum(r[:128], crc32.MakeTable(crc32.Castagnoli)))
	m.medium.setRecord(m.t, r)
}

// terminate ends the process by SIGTERM. With failing the close of the disk
// cannot make it durable.
func (m *machine) terminate(failing bool) {
	m.t.Helper()
	m.one.drain(m.t)
	m.two.drain(m.t)
	m.counted()
	latched := m.device.latch.Err() != nil
	m.medium.failing = m.medium.failing || failing
	if err := m.device.Close(); (err != nil) != (m.medium.failing || latched) {
		m.t.Errorf("close of the disk: %v", err)
	}
	m.late = nil
	m.medium.failing, m.device = false, nil
}

// over begins to serve the disk over the second provider too, and returns how
// to reach it.
func (m *machine) over() initiator.Config {
	m.t.Helper()
	if m.two.cancel == nil {
		m.two.start(m.t, m.device, m.disk, limits{4096, 64 << 10})
	}
	return config(m.two)
}

// config reaches the disk at a provider.
func config(p *port) initiator.Config {
	return initiator.Config{NIC: p.initiator, Host: "target", Export: "disk", PoolBytes: 64 << 10, Depth: 2, RegisterMax: -1}
}

// writer is a client whose device outlives its connections.
type writer struct {
	device *initiator.Device
	queue  block.Queue
}

// attach attaches the disk.
func attach(cfg initiator.Config) (*writer, error) {
	d, err := initiator.Dial(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	q, err := d.NewQueue(2)
	if err != nil {
		return nil, fmt.Errorf("%w, close: %w", err, d.Close())
	}
	return &writer{d, q}, nil
}

// close detaches the disk.
func (w *writer) close(t testing.TB) {
	t.Helper()
	if err := w.queue.Close(); err != nil {
		t.Error(err)
	}
	_ = w.device.Close() // of a lost disk: says so
}

// do executes a request.
func (w *writer) do(r *block.Request) error {
	w.begin(r)
	return w.wait()
}

// begin begins a request, which waits while the target is away.
func (w *writer) begin(r *block.Request) {
	w.queue.Submit(r)
	w.queue.Kick()
}

// wait waits for the request.
func (w *writer) wait() error {
	done := make([]*block.Request, 1)
	for w.queue.Reap(done) == 0 {
		pause(w.queue)
	}
	return done[0].Err
}

// pause waits for a queue to have something to do.
func pause(q block.Queue) {
	wait, ok := q.Arm()
	if !ok {
		return
	}
	if wait < 0 || wait > time.Millisecond {
		wait = time.Millisecond
	}
	timeout := unix.NsecToTimespec(int64(wait))
	_, _ = unix.Ppoll([]unix.PollFd{{Fd: int32(q.FD()), Events: unix.POLLIN}}, &timeout, nil) // EINTR: the caller looks again
}
