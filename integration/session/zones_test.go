package session

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/backend/backendtest"
)

// TestBlocksAreWhole: a client of a disk, by NBD at the target, by NBD through
// an initiator, or as an initiator, in requests that begin on blocks or between
// them, sees and leaves blocks of 4 KiB whole.
func TestBlocksAreWhole(t *testing.T) {
	for name, spec := range map[string]func(testing.TB) string{
		"memory": func(testing.TB) string { return "memory:16MiB" },
		"file":   func(t testing.TB) string { return "file:" + testbed.SparseFile(t, 16<<20) },
		"mmap":   func(t testing.TB) string { return "mmap:" + testbed.SparseFile(t, 16<<20) },
		"direct": func(t testing.TB) string { return "file:" + testbed.SparseFile(t, 16<<20) + "?direct=1" },
	} {
		t.Run(name, func(t *testing.T) {
			d := openBackend(t, spec(t))
			c := newChain(t, target.Config{}, target.Export{Name: "disk", Device: d})
			// An odd command length: cuts that are not made with care show.
			writer := c.attach(t, "disk", func(cfg *initiator.Config) { cfg.MaxIO = 100_000 })
			reader := c.attach(t, "disk", func(cfg *initiator.Config) { cfg.ReadOnly = true })
			t.Cleanup(func() {
				testbed.Must(t, reader.Close())
				testbed.Must(t, writer.Close())
			})
			plain, remote := serveNBD(t, d), serveNBD(t, writer)

			z := backendtest.NewZones(d.Info())
			users := []zoneUser{
				dialZones(t, plain), dialZones(t, plain), dialZones(t, remote), dialZones(t, remote),
				callZones(writer), callZones(reader),
			}
			for _, a := range z.First() {
				testbed.Must(t, users[0].use(z, []backendtest.Access{a}))
			}
			var running sync.WaitGroup
			for i, u := range users {
				running.Go(func() {
					random := rand.New(rand.NewPCG(uint64(i), 17))
					accesses := make([]backendtest.Access, 4)
					for range 60 {
						for k := range accesses {
							accesses[k] = z.Next(random, i != len(users)-1)
						}
						if err := u.use(z, accesses); err != nil {
							t.Errorf("user %d: %v", i, err)
							return
						}
					}
				})
			}
			running.Wait()
			testbed.Must(t, z.Check())
		})
	}
}

// zoneUser sends several requests at a time and checks what comes back.
type zoneUser interface {
	use(z *backendtest.Zones, accesses []backendtest.Access) error
}

// calls are the methods of a disk.
type calls struct {
	disk interface {
		io.ReaderAt
		io.WriterAt
	}
}

func callZones(d *initiator.Device) zoneUser { return calls{d} }

func (c calls) use(z *backendtest.Zones, accesses []backendtest.Access) error {
	errs := make([]error, len(accesses))
	var running sync.WaitGroup
	for i := range accesses {
		running.Go(func() {
			a, p := &accesses[i], make([]byte, accesses[i].Length)
			z.Begin(a, p)
			var err error
			if a.Write {
				_, err = c.disk.WriteAt(p, a.Offset)
			} else {
				_, err = c.disk.ReadAt(p, a.Offset)
			}
			if errs[i] = err; err == nil {
				errs[i] = z.End(a, p)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// serveNBD serves a disk by NBD, as the default export, and returns the socket.
func serveNBD(t testing.TB, d block.Device) (path string) {
	t.Helper()
	exports, err := nbd.NewExports(nbd.Export{Name: "disk", Device: d})
	testbed.Must(t, err)
	path = filepath.Join(t.TempDir(), "n")
	ctx, cancel := context.WithCancel(context.Background())
	l, err := nbd.Listen(ctx, "unix", path)
	testbed.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- (&nbd.Server{Exports: exports}).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return path
}

// nbdZones is a client with simple replies, in the bytes of the protocol.
type nbdZones struct{ conn net.Conn }

// dialZones connects to the default export.
func dialZones(t testing.TB, path string) zoneUser {
	t.Helper()
	conn, err := net.Dial("unix", path)
	testbed.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // before the server is stopped
	testbed.Must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	hello := make([]byte, 18)
	_, err = io.ReadFull(conn, hello)
	testbed.Must(t, err)
	var b []byte
	b = binary.BigEndian.AppendUint32(b, 3)                  // fixed newstyle, no zeroes
	b = binary.BigEndian.AppendUint64(b, 0x49484156454f5054) // "IHAVEOPT"
	b = binary.BigEndian.AppendUint32(b, 1)                  // EXPORT_NAME
	b = binary.BigEndian.AppendUint32(b, 0)
	_, err = conn.Write(b)
	testbed.Must(t, err)
	_, err = io.ReadFull(conn, make([]byte, 10)) // size and flags
	testbed.Must(t, err)
	return nbdZones{conn}
}

func (n nbdZones) use(z *backendtest.Zones, accesses []backendtest.Access) error {
	memory := make([][]byte, len(accesses))
	for i := range accesses {
		a := &accesses[i]
		memory[i] = make([]byte, a.Length)
		z.Begin(a, memory[i])
		b := binary.BigEndian.AppendUint32(nil, 0x25609513)
		if a.Write {
			b = binary.BigEndian.AppendUint32(b, 1)
		} else {
			b = binary.BigEndian.AppendUint32(b, 0)
		}
		b = binary.BigEndian.AppendUint64(b, uint64(i))
		b = binary.BigEndian.AppendUint64(b, uint64(a.Offset))
		b = binary.BigEndian.AppendUint32(b, uint32(a.Length))
		if a.Write {
			b = append(b, memory[i]...)
		}
		if _, err := n.conn.Write(b); err != nil {
			return fmt.Errorf("send: %w", err)
		}
	}
	for range accesses {
		var reply [16]byte
		if _, err := io.ReadFull(n.conn, reply[:]); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		i := binary.BigEndian.Uint64(reply[8:])
		magic, errno := binary.BigEndian.Uint32(reply[:]), binary.BigEndian.Uint32(reply[4:])
		if magic != 0x67446698 || errno != 0 || i >= uint64(len(accesses)) || memory[i] == nil {
			return fmt.Errorf("reply %x", reply)
		}
		a := &accesses[i]
		if !a.Write {
			if _, err := io.ReadFull(n.conn, memory[i]); err != nil {
				return fmt.Errorf("receive data: %w", err)
			}
		}
		if err := z.End(a, memory[i]); err != nil {
			return err
		}
		memory[i] = nil
	}
	return nil
}
