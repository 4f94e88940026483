package regbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/via"
)

const (
	diskSize = 64 << 20  // bytes, of memory
	areaSize = 128 << 20 // bytes, of an end's buffers
	budget   = 32 << 20  // bytes that an end registers
	mostEnds = 16
)

// Address returns where a target of a provider listens, given a folder of its
// own.
type Address func(folder string) string

// rig is a target with a disk in memory, which is all in use.
type rig struct {
	provider via.Provider
	folder   string
	remove   func() error
	host     string
	nic      *via.NIC
	disk     block.Device
	ends     int // attached so far
	stop     context.CancelFunc
	served   chan error
}

// temporary makes a folder; remove removes it.
func temporary() (folder string, remove func() error, err error) {
	if folder, err = os.MkdirTemp("", "viablk-bench"); err != nil {
		return "", nil, err
	}
	return folder, func() error { return os.RemoveAll(folder) }, nil
}

func openRig(p via.Provider, at Address) (r *rig, err error) {
	r = &rig{provider: p}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open a target: %w", err), r.close())
		}
	}()
	if r.folder, r.remove, err = temporary(); err != nil {
		return r, err
	}
	r.host = at(r.folder)
	if r.disk, err = backend.Open(fmt.Sprintf("memory:%d", diskSize), backend.Options{}); err != nil {
		return r, err
	}
	disk := r.disk.(block.Mapped)
	disk.Access(0, diskSize, true)
	mem := disk.Memory()
	for i := 0; i < len(mem); i += 4096 {
		mem[i] = 1
	}
	if r.nic, err = via.OpenNic(p, ""); err != nil {
		return r, err
	}
	r.nic.ErrorCallback(func(via.AsyncError) {}) // an end that closes is none
	var exports []target.Export                  // an export has one writer
	for i := range mostEnds {
		exports = append(exports, target.Export{Name: strconv.Itoa(i), Device: r.disk})
	}
	server, err := target.New(target.Config{NIC: r.nic, Exports: exports, KeepAlive: time.Minute})
	if err != nil {
		return r, err
	}
	l, err := server.Listen(r.host)
	if err != nil {
		return r, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop, r.served = stop, make(chan error, 1)
	go func() { r.served <- server.Serve(ctx, l) }()
	return r, nil
}

func (r *rig) close() error {
	var errs []error
	if r.served != nil {
		r.stop()
		errs = append(errs, <-r.served)
	}
	if r.nic != nil {
		errs = append(errs, r.nic.Close())
	}
	if r.disk != nil {
		errs = append(errs, r.disk.Close())
	}
	if r.remove != nil {
		errs = append(errs, r.remove())
	}
	return errors.Join(errs...)
}

// end is an attached disk with one queue and an area of buffers.
type end struct {
	nic     *via.NIC
	device  *initiator.Device
	queue   block.Queue
	area    []byte
	request block.Request
	reaped  [1]*block.Request
	at      int64 // on the disk
	span    int64 // bytes of the disk that are used
	seen    byte  // so that reads are not optimised away
}

// attach attaches the disk. mode, policy and chunk are the initiator's.
func (r *rig) attach(mode regcache.CopyMode, policy regcache.Policy, chunk int) (e *end, err error) {
	e = &end{span: diskSize}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.nic, err = via.OpenNic(r.provider, ""); err != nil {
		return e, err
	}
	e.nic.ErrorCallback(func(via.AsyncError) {})
	e.device, err = initiator.Dial(context.Background(), initiator.Config{
		NIC: e.nic, Host: r.host, Export: strconv.Itoa(r.ends), CopyMode: mode, RegisterMax: budget, Policy: policy, Chunk: chunk,
	})
	if err != nil {
		return e, err
	}
	r.ends++
	if e.queue, err = e.device.NewQueue(64); err != nil {
		return e, err
	}
	if e.area, err = e.device.Alloc(areaSize); err != nil {
		return e, err
	}
	for i := 0; i < len(e.area); i += 4096 {
		e.area[i] = 1
	}
	return e, nil
}

func (e *end) close() error {
	var errs []error
	if e.queue != nil {
		errs = append(errs, e.queue.Close())
	}
	if e.device != nil {
		if e.area != nil {
			errs = append(errs, e.device.Free(e.area))
		}
		errs = append(errs, e.device.Close())
	}
	if e.nic != nil {
		errs = append(errs, e.nic.Close())
	}
	return errors.Join(errs...)
}

// pollTime is how long an end polls before it sleeps: where a processor is
// free, answers come before, and what a wake-up costs is not measured.
const pollTime = time.Millisecond

// run runs one request to its end.
func (e *end) run(op block.Op, buf []byte) error {
	if e.at+int64(len(buf)) > e.span {
		e.at = 0
	}
	e.request = block.Request{Op: op, Offset: e.at, Length: int64(len(buf)), Data: buf}
	e.at += int64(len(buf))
	if !e.queue.Submit(&e.request) {
		return errors.New("the queue is full")
	}
	e.queue.Kick()
	for begin := time.Now(); e.queue.Reap(e.reaped[:]) == 0; {
		if time.Since(begin) < pollTime {
			continue
		}
		if _, ok := e.queue.Arm(); ok {
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(e.queue.FD()), Events: unix.POLLIN}}, 1000)
		}
	}
	return e.request.Err
}

// round is what an end does in a round: operations until there were least of
// them, a whole number of cycles, and the time has passed.
type round struct {
	op           block.Op
	size         int // bytes
	least, cycle int // operations
	lasts        time.Duration
}

// spent is what a round took.
type spent struct {
	time     time.Duration // all of it
	requests time.Duration // what the requests took of it, without their bytes' making
	ops      int
}

// each returns nanoseconds of one operation.
func (s spent) each() float64 { return float64(s.time) / float64(s.ops) }

func (s *spent) add(o spent) {
	s.time += o.time
	s.requests += o.requests
	s.ops += o.ops
}

// lease runs a round. Data to write is made just before, and data read is
// inspected just after, a word of each line, as a program does.
func (e *end) lease(t round, next func() int) (spent, error) {
	var requests time.Duration
	begin := time.Now()
	for n := 1; ; n++ {
		at := next()
		buf := e.area[at : at+t.size : at+t.size]
		if t.op == block.Write {
			for i := 0; i < len(buf); i += 64 {
				buf[i]++
			}
		}
		submitted := time.Now()
		if err := e.run(t.op, buf); err != nil {
			return spent{}, err
		}
		requests += time.Since(submitted)
		if t.op == block.Read {
			for i := 0; i < len(buf); i += 64 {
				e.seen += buf[i]
			}
		}
		if n >= t.least && n%t.cycle == 0 && (n%4 == 0 || t.size >= 256<<10) {
			if elapsed := time.Since(begin); elapsed >= t.lasts {
				return spent{elapsed, requests, n}, nil
			}
		}
	}
}
