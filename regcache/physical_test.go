package regcache

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/shm"
)

// frame returns the physical page behind an address of this process, or 0: only
// root may read it.
func frame(t *testing.T, addr uint64) uint64 {
	t.Helper()
	f := must(os.Open("/proc/self/pagemap"))(t)
	defer f.Close()
	var b [8]byte
	page := uint64(os.Getpagesize())
	if _, err := f.ReadAt(b[:], int64(addr/page*8)); err != nil {
		t.Fatal(err)
	}
	const present, frames = 1 << 63, 1<<55 - 1
	if e := binary.LittleEndian.Uint64(b[:]); e&present != 0 {
		return e & frames
	}
	return 0
}

// mappingsOf returns the addresses of the same byte in every mapping of the
// file behind an address.
func mappingsOf(t *testing.T, addr uint64) (all []uint64) {
	t.Helper()
	type mapping struct {
		from, to, off uint64
		file          string
	}
	var list []mapping
	var mine mapping
	f := must(os.Open("/proc/self/maps"))(t)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		var m mapping
		if _, err := fmt.Sscanf(fields[0]+" "+fields[2], "%x-%x %x", &m.from, &m.to, &m.off); err != nil {
			t.Fatal(err)
		}
		m.file = fields[3] + " " + fields[4] // device and inode
		list = append(list, m)
		if addr >= m.from && addr < m.to {
			mine = m
		}
	}
	at := addr - mine.from + mine.off
	for _, m := range list {
		if m.file == mine.file && at >= m.off && at < m.off+m.to-m.from {
			all = append(all, m.from+at-m.off)
		}
	}
	return all
}

// connectedVIs returns two connected VIs of two NICs over shared memory.
func connectedVIs(t *testing.T) (nics [2]*via.NIC, tags [2]via.Ptag, cqs [2]*via.CQ, vis [2]*via.VI) {
	t.Helper()
	for i := range nics {
		nics[i] = must(via.OpenNic(shm.New(shm.Options{}), ""))(t)
		nics[i].ErrorCallback(func(via.AsyncError) {})
		tags[i] = must(nics[i].CreatePtag())(t)
		cqs[i] = must(nics[i].CreateCQ(8))(t)
		vis[i] = must(nics[i].CreateVi(via.ViAttributes{
			Reliability: via.ReliableDelivery, Ptag: tags[i], EnableRdmaWrite: true,
		}, via.ViConfig{SendCQ: cqs[i], RecvCQ: cqs[i], SendDepth: 4, RecvDepth: 4}))(t)
	}
	host := filepath.Join(t.TempDir(), "s")
	l := must(nics[0].Listen(via.Address{Host: host, Discriminator: "pages"}))(t)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Wait(context.Background())
		if err == nil {
			err = r.Accept(context.Background(), vis[0])
		}
		accepted <- err
	}()
	must(vis[1].Connect(context.Background(), via.Address{Host: host, Discriminator: "pages"}))(t)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := range vis {
			_ = vis[i].Disconnect()
		}
		var done [8]via.Completion
		for i := range vis {
			cqs[i].Poll(done[:])
			for _, err := range []error{vis[i].Destroy(), cqs[i].Destroy()} {
				if err != nil {
					t.Error(err)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		for i := range nics {
			if err := nics[i].Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return nics, tags, cqs, vis
}

// samePage checks that the owner's mapping and its peer's, which has just been
// written through, share the page behind an address, and returns it.
func samePage(t *testing.T, addr uint64) uint64 {
	t.Helper()
	private := frame(t, addr)
	if private == 0 {
		t.Fatalf("no page at %#x is in memory", addr)
	}
	same := 0
	for _, place := range mappingsOf(t, addr) {
		switch frame(t, place) {
		case private:
			same++
		case 0: // an untouched mapping
		default:
			t.Errorf("the owner has page %#x, the mapping at %#x has %#x", private, place, frame(t, place))
		}
	}
	if same < 2 {
		t.Errorf("page %#x is mapped %d times; the owner and the peer have it", private, same)
	}
	return private
}

// The owner and its peer access the registered page, whatever the runtime and
// the kernel do meanwhile.
func TestRegisteredPageIsTheOneUsed(t *testing.T) {
	nics, tags, cqs, vis := connectedVIs(t)
	c := must(New(nics[0], Config{MaxRegions: 8}))(t)
	a := must(c.NewArena(4 << 20))(t)
	buf := must(a.Alloc(64 << 10))(t)
	for i := range buf {
		buf[i] = 0xee // the pages exist from here on
	}
	l := must(c.Acquire(buf, tags[0], RemoteWrite))(t)
	before := frame(t, l.Addr())
	if before == 0 {
		t.Fatal("no physical page is shown: these tests need root, and a system that shows them")
	}
	fill := peerWriter(t, nics[1], tags[1], cqs[1], vis[1], l)
	write := func(value byte) {
		t.Helper()
		if status := fill(value); status.Failed() {
			t.Fatal(status)
		}
		if buf[0] != value || buf[4095] != value || buf[4096] != 0xee {
			t.Errorf("the owner reads %#x %#x %#x, written was %#x", buf[0], buf[4095], buf[4096], value)
		}
		samePage(t, l.Addr())
	}
	write(1)
	// The provider registers memory of a file that both ends map. The kernel
	// may move its pages, but never for only one of the mappings; of these
	// disturbances only the collapse moves any.
	disturb := map[string]func(){
		"garbage collection": func() { runtime.GC(); debug.FreeOSMemory() },
		"collapse into huge pages": func() {
			const collapse = 25 // MADV_COLLAPSE; a refusal disturbs nothing
			_ = unix.Madvise(a.Bytes(), collapse)
		},
		"memory of the heap freed and used again": func() {
			for range 8 {
				b := make([]byte, 8<<20)
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
			}
			debug.FreeOSMemory()
		},
	}
	value := byte(1)
	for name, do := range disturb {
		t.Run(name, func(t *testing.T) {
			do()
			if now := samePage(t, l.Addr()); now != before {
				if name != "collapse into huge pages" {
					t.Errorf("page %#x was registered, it is %#x now", before, now)
				}
				t.Logf("page %#x became %#x, for both ends", before, now)
				before = now
			}
			value++
			write(value)
		})
	}
	l.Release()
	if err := a.Free(buf); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
