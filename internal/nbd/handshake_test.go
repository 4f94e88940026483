package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// disks are the exports of the handshake tests.
func disks() []Export {
	aligned := newMemory(1 << 20)
	aligned.info.MinimumBlock = 4096
	plain := newMemory(2 << 20)
	plain.info.Features = 0
	return []Export{
		{Name: "disk", Description: "the first one", Device: newMemory(8 << 20), Default: true},
		{Name: "aligned", Device: aligned},
		{Name: "plain", Device: plain},
		{Name: "readonly", Device: newMemory(1 << 20), ReadOnly: true},
		{Name: "single", Device: newMemory(1 << 20), Connections: 1},
	}
}

// fullFlags are the transmission flags of a device with every feature.
const fullFlags = 0x0001 | 0x0004 | 0x0008 | 0x0020 | 0x0040 | 0x0100 | 0x0400 | 0x0800

// greeted is a script that begins after the flags.
func greeted(do func(p *peer)) func(*peer) {
	return func(p *peer) { p.greet(bothFlags); do(p) }
}

// refused is a script with one option, which is refused.
func refused(option, kind uint32, data ...[]byte) func(*peer) {
	return greeted(func(p *peer) {
		p.option(option, data...)
		p.wantReply(option, kind)
		p.wantInSync()
	})
}

// handshakes are the statements of the protocol about negotiation. A row's
// number is that of the statement in nbdtest, or of its kind.
var handshakes = []struct {
	name string
	do   func(p *peer)
}{
	{"H-03 without fixed newstyle only EXPORT_NAME is answered", func(p *peer) {
		p.greet(0)
		p.option(optList)
		p.wantReply(optList, repErrInvalid)
		p.option(optExportName, []byte("disk"))
		p.get(8 + 2 + 124)
		p.wantAlive()
	}},
	{"H-04 EXPORT_NAME without zeroes", greeted(func(p *peer) {
		p.option(optExportName, []byte("disk"))
		want := append(be64(8<<20), be16(fullFlags)...)
		if got := p.get(10); !bytes.Equal(got, want) {
			p.t.Fatalf("got % x, want % x", got, want)
		}
		p.wantAlive()
	})},
	{"H-04 EXPORT_NAME with zeroes", func(p *peer) {
		p.greet(1)
		p.option(optExportName, nil)
		if got := p.get(134); !bytes.Equal(got[10:], make([]byte, 124)) {
			p.t.Fatal("padding is not zero")
		}
		p.wantAlive()
	}},
	{"H-04 no zeroes after GO", func(p *peer) {
		p.greet(1)
		p.option(optGo, nbdtest.GoData("disk"))
		p.infos(optGo)
		p.wantAlive()
	}},
	{"H-05 EXPORT_NAME of an unknown export closes without a byte", greeted(func(p *peer) {
		p.option(optExportName, []byte("absent"))
		p.wantEnd()
	})},
	{"H-06 ABORT is acknowledged", greeted(func(p *peer) {
		p.option(optAbort)
		p.wantReply(optAbort, repAck)
		p.wantEnd()
	})},
	{"H-06 ABORT with data is acknowledged", greeted(func(p *peer) {
		p.option(optAbort, []byte("for a reason"))
		p.wantReply(optAbort, repAck)
		p.wantEnd()
	})},
	{"H-07 LIST names every export", greeted(func(p *peer) {
		p.option(optList)
		for _, want := range []string{"disk", "aligned", "plain", "readonly", "single"} {
			data := p.wantReply(optList, repServer)
			if got := string(data[4 : 4+binary.BigEndian.Uint32(data)]); got != want {
				p.t.Fatalf("listed %q, want %q", got, want)
			}
		}
		p.wantReply(optList, repAck)
		p.wantInSync()
	})},
	{"H-07 LIST with data", refused(optList, repErrInvalid, []byte("x"))},
	{"H-08 unknown option without data", refused(77, repErrUnsupported)},
	{"H-08 unknown option with data", refused(77, repErrUnsupported, make([]byte, 60000))},
	{"H-09 data over the limit is skipped", refused(77, repErrTooBig, make([]byte, 65<<10))},
	{"H-09 data of 4 GiB", greeted(func(p *peer) {
		p.put([]byte("IHAVEOPT"), be32(optGo), be32(0xffffffff), []byte("data"))
		p.wantEnd()
	})},
	{"H-10 name longer than the option", refused(optGo, repErrInvalid, be32(5), []byte("disk"), be16(0))},
	{"H-10 name length 0xffffffff", refused(optGo, repErrInvalid, be32(0xffffffff), []byte("disk"), be16(0))},
	{"H-10 name length 0xfffffffa", refused(optInfo, repErrInvalid, be32(0xfffffffa), []byte("disk"), be16(0))},
	{"H-10 no data", refused(optGo, repErrInvalid)},
	{"H-10 five bytes", refused(optInfo, repErrInvalid, be32(0), []byte{0})},
	{"H-10 trailing bytes", refused(optGo, repErrInvalid, nbdtest.GoData("disk"), []byte{0})},
	{"H-10 more requests than bytes", refused(optGo, repErrInvalid, be32(0), be16(2), be16(0))},
	{"H-10 fewer requests than bytes", refused(optInfo, repErrInvalid, be32(0), be16(1), be16(0), be16(1))},
	{"H-11 name of 4097 bytes", refused(optGo, repErrInvalid, nbdtest.GoData(strings.Repeat("n", 4097)))},
	{"H-11 name of 4096 bytes", refused(optGo, repErrUnknown, nbdtest.GoData(strings.Repeat("\x01", 4096)))},
	{"H-11 name with NUL", refused(optGo, repErrInvalid, nbdtest.GoData("disk\x00"))},
	{"H-11 name that is not UTF-8", refused(optInfo, repErrInvalid, nbdtest.GoData("\xff\xfe"))},
	{"H-11 EXPORT_NAME of 5000 bytes", greeted(func(p *peer) {
		p.option(optExportName, make([]byte, 5000))
		p.wantEnd()
	})},
	{"H-11 EXPORT_NAME with NUL is not its prefix", greeted(func(p *peer) {
		p.option(optExportName, []byte("disk\x00"))
		p.wantEnd()
	})},
	{"H-12 INFO for an unknown export", refused(optInfo, repErrUnknown, nbdtest.GoData("absent", infoName))},
	{"H-13 INFO then GO tell the same", greeted(func(p *peer) {
		data := nbdtest.GoData("", infoName, infoDescription, infoBlockSize)
		p.option(optInfo, data)
		first := p.infos(optInfo)
		p.option(optGo, data)
		second := p.infos(optGo)
		want := fmt.Sprint(map[uint16][]byte{
			infoExport:      append(be64(8<<20), be16(fullFlags)...),
			infoName:        []byte("disk"),
			infoDescription: []byte("the first one"),
			infoBlockSize:   bytes.Join([][]byte{be32(1), be32(4096), be32(64 << 20)}, nil),
		})
		if fmt.Sprint(first) != want || fmt.Sprint(second) != want {
			p.t.Fatalf("INFO %v, GO %v, want %v", first, second, want)
		}
		p.wantAlive()
	})},
	{"H-14 INFO for one export, GO for an unknown one", greeted(func(p *peer) {
		p.option(optInfo, nbdtest.GoData("disk"))
		p.infos(optInfo)
		p.option(optGo, nbdtest.GoData("absent"))
		p.wantReply(optGo, repErrUnknown)
		p.wantInSync()
	})},
	{"H-15 unknown and repeated information requests", greeted(func(p *peer) {
		p.option(optInfo, nbdtest.GoData("disk", 99, infoName, infoName, 0xffff, 4))
		if infos := p.infos(optInfo); len(infos) != 3 || string(infos[infoName]) != "disk" {
			p.t.Fatalf("got %v", infos)
		}
		p.wantInSync()
	})},
	{"H-16 STRUCTURED_REPLY with data", refused(optStructuredReply, repErrInvalid, []byte("x"))},
	{"H-16 STRUCTURED_REPLY twice", greeted(func(p *peer) {
		for range 2 {
			p.option(optStructuredReply)
			p.wantReply(optStructuredReply, repAck)
		}
		p.option(optGo, nbdtest.GoData(""))
		if flags := p.infos(optGo)[infoExport][8:]; !bytes.Equal(flags, be16(fullFlags|flagSendDF)) {
			p.t.Fatalf("flags % x", flags)
		}
		p.replyMode = structured
		p.wantAlive()
	})},
	{"H-21 STARTTLS without TLS", refused(optStartTLS, repErrUnsupported)},
	{"H-21 STARTTLS with data", refused(optStartTLS, repErrUnsupported, []byte("hello"))},
	{"H-24 options of one handshake are limited", greeted(func(p *peer) {
		for range 32 {
			p.option(77)
			p.wantReply(77, repErrUnsupported)
		}
		p.option(optAbort)
		p.wantEnd()
	})},
	{"H-24 listing allows to ask for each export", greeted(func(p *peer) {
		p.option(optList)
		for kind := repServer; kind != repAck; {
			kind, _ = p.reply(optList)
		}
		for range 31 + 5 {
			p.wantInSync()
		}
		p.option(optAbort)
		p.wantEnd()
	})},
	{"T-23 GO without asking for a block size that matters", greeted(func(p *peer) {
		p.option(optGo, nbdtest.GoData("aligned"))
		if got := p.wantReply(optGo, repInfo); !bytes.Equal(got[:6], append(be16(infoBlockSize), be32(4096)...)) {
			p.t.Fatalf("information % x", got)
		}
		p.wantReply(optGo, repErrBlockSizeReqd)
		p.option(optGo, nbdtest.GoData("aligned", infoBlockSize))
		p.infos(optGo)
		p.want(0, 0, cmdRead, 4096, 4096)
	})},
	{"T-10 READ_ONLY flag", greeted(func(p *peer) {
		p.option(optInfo, nbdtest.GoData("readonly"))
		if flags := p.infos(optInfo)[infoExport][8:]; !bytes.Equal(flags, be16(0x0001|0x0002|0x0004|0x0008|0x0100|0x0400)) {
			p.t.Fatalf("flags % x", flags)
		}
	})},
	{"T-14 a device without features has no flags", greeted(func(p *peer) {
		p.option(optInfo, nbdtest.GoData("plain"))
		if flags := p.infos(optInfo)[infoExport][8:]; !bytes.Equal(flags, be16(0x0001)) {
			p.t.Fatalf("flags % x", flags)
		}
	})},
	{"option magic", greeted(func(p *peer) {
		p.put([]byte("IHAVEOPS"), be32(optAbort), be32(0))
		p.wantEnd()
	})},
}

// TestHandshake goes through handshakes, one connection each.
func TestHandshake(t *testing.T) {
	f := serve(t, Limits{}, disks()...)
	for _, row := range slices.Concat(handshakes, agreements) {
		t.Run(row.name, func(t *testing.T) {
			p := f.dial()
			p.t = t
			row.do(p)
			p.Close()
		})
	}
}

func TestUnknownClientFlags(t *testing.T) {
	f := serve(t, Limits{}, disks()...)
	for bit := 2; bit < 32; bit++ {
		t.Run(fmt.Sprintf("H-01 H-02 bit %d", bit), func(t *testing.T) {
			p := f.dial()
			p.t = t
			p.greet(bothFlags | 1<<bit)
			p.wantEnd()
		})
	}
}

func TestEmptyList(t *testing.T) {
	f := serve(t, Limits{})
	p := f.dial()
	p.greet(bothFlags)
	p.option(optList)
	p.wantReply(optList, repAck) // H-07
	p.option(optGo, nbdtest.GoData(""))
	p.wantReply(optGo, repErrUnknown)
}

// A client that leaves after any prefix of a handshake costs nothing:
// the class of CVE-2013-6410 and CVE-2017-15119.
func TestClientLeavesAtEveryByte(t *testing.T) {
	f := serve(t, Limits{}, disks()...)
	stream := bytes.Join([][]byte{
		be32(bothFlags),
		[]byte("IHAVEOPT"), be32(optStructuredReply), be32(0),
		[]byte("IHAVEOPT"), be32(optList), be32(0),
		[]byte("IHAVEOPT"), be32(optGo), be32(10), nbdtest.GoData("disk"),
		request(0, cmdWrite, 1, 0, 16), make([]byte, 16),
		request(0, cmdRead, 2, 0, 4096),
	}, nil)
	for n := range len(stream) + 1 {
		p := f.dial()
		p.put(stream[:n])
		p.Close()
	}
	p := f.connectExport("", simple)
	p.wantAlive()
	p.disconnect()
}

// The device is opened when the client has entered an export, not before: a
// client cannot have it opened many times in one handshake (CVE-2019-14850).
func TestDeviceIsOpenedByGo(t *testing.T) {
	m := newMemory(1 << 20)
	f := serve(t, Limits{}, Export{Name: "disk", Device: m})
	p := f.dial()
	p.greet(bothFlags)
	for range 10 {
		p.wantInSync()
	}
	p.option(optGo, nbdtest.GoData("absent"))
	p.wantReply(optGo, repErrUnknown)
	if n := m.opened.Load(); n != 0 {
		t.Fatalf("device opened %d times before GO", n)
	}
	p.option(optGo, nbdtest.GoData(""))
	p.infos(optGo)
	if n := m.opened.Load(); n != 1 {
		t.Fatalf("device opened %d times after GO", n)
	}
}

// Options in any order neither end nor confuse the server (CVE-2019-14851).
func TestOptionsInRandomOrder(t *testing.T) {
	f := serve(t, Limits{Options: 1000}, disks()...)
	p := f.dial()
	p.greet(bothFlags)
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		option := uint32(2 + r.IntN(12))
		switch option {
		case optAbort:
			option = 12345
			p.option(option, make([]byte, r.IntN(100)))
		case optGo:
			p.option(option, nbdtest.GoData("absent", infoName))
		default:
			p.option(option, make([]byte, r.IntN(3)*r.IntN(100)))
		}
		for last := false; !last; {
			kind, _ := p.reply(option)
			last = kind == repAck || kind&repError != 0
		}
	}
	p.wantInSync()
}

func TestHandshakeLimit(t *testing.T) {
	f := serve(t, Limits{Handshake: 300 * time.Millisecond}, disks()...)
	silent, slow := f.dial(), f.dial()
	slow.greet(bothFlags)
	slow.put([]byte("IHAVE"))
	silent.get(greetingSize)
	silent.wantEnd()
	slow.wantEnd()
	// In transmission the limit is over.
	f = serve(t, Limits{Handshake: time.Second, Progress: time.Millisecond}, disks()...)
	p := f.connectExport("", simple)
	time.Sleep(1100 * time.Millisecond)
	p.wantAlive()
}

// Idle connections are limited in number and do not keep the server from ending
// (CVE-2024-7409). A client too many hears of it; one that says nothing keeps
// no other client out.
func TestConnectionLimit(t *testing.T) {
	f := serve(t, Limits{Connections: 20}, disks()...)
	silent := f.dial()
	silent.get(greetingSize)
	var peers []*peer
	for range 20 {
		peers = append(peers, f.connectExport("", simple))
	}
	late := f.dial()
	late.greet(bothFlags)
	for range 3 {
		late.option(optGo, nbdtest.GoData(""))
		if text := late.wantReply(optGo, repErrPolicy); !strings.Contains(string(text), errTooMany.Error()) {
			t.Errorf("the refusal says %q", text)
		}
		late.wantInSync()
	}
	unheard := f.dial()
	unheard.greet(bothFlags)
	unheard.option(optExportName)
	unheard.wantEnd()
	peers[0].disconnect()
	for s := f.server.Status(); s.Exports[0].Connections == 20 || len(s.Connections) > 21; s = f.server.Status() {
		time.Sleep(time.Millisecond)
	}
	late.option(optGo, nbdtest.GoData(""))
	late.infos(optGo)
	late.wantAlive()
	for len(f.server.Status().Connections) > 21 { // until that of unheard is forgotten
		time.Sleep(time.Millisecond)
	}
	if s := f.server.Status(); s.Refused != 4 || s.Dropped != 0 || s.Handshakes != 1 || len(s.Connections) != 21 || s.Admitted != 20 || s.Limit != 20 {
		t.Errorf("status %+v", s)
	}
	f.stop()
	for _, p := range append(peers[1:], late, silent) {
		p.wantEnd()
	}
}

func TestExportConnectionLimit(t *testing.T) {
	f := serve(t, Limits{}, disks()...)
	first := f.connectExport("single", simple)
	p := f.dial()
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData("single"))
	p.wantReply(optGo, repErrPolicy)
	p.wantInSync()
	q := f.dial()
	q.greet(bothFlags)
	q.option(optExportName, []byte("single"))
	q.wantEnd()
	first.disconnect()
	for f.server.Status().Exports[0].Connections != 0 {
		time.Sleep(time.Millisecond)
	}
	p.option(optGo, nbdtest.GoData("single"))
	p.infos(optGo)
	p.wantAlive()
}

func TestDrainInHandshake(t *testing.T) {
	f := serve(t, Limits{}, disks()...)
	haggling, leaving, idle := f.dial(), f.dial(), f.dial()
	for _, p := range []*peer{haggling, leaving, idle} {
		p.greet(bothFlags)
		p.wantInSync()
	}
	drained := make(chan error, 1)
	go func() { drained <- f.server.Drain(context.Background()) }()
	for !f.server.Status().Draining {
		time.Sleep(time.Millisecond)
	}
	haggling.option(optGo, nbdtest.GoData("disk")) // H-23
	haggling.wantReply(optGo, repErrShutdown)
	leaving.option(optAbort)
	leaving.wantReply(optAbort, repAck)
	for _, p := range []*peer{haggling, leaving, idle} {
		p.wantEnd()
	}
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	if err := <-f.served; err != nil {
		t.Fatal(err)
	}
	f.served <- nil
}

func TestNewExports(t *testing.T) {
	disk := newMemory(1 << 20)
	odd := newMemory(1000)
	odd.info.MinimumBlock = 512
	small := newMemory(1 << 20)
	small.info.MaximumPayload = 4096
	for _, row := range []struct {
		name    string
		exports []Export
		want    string // of the error
	}{
		{"none", nil, ""},
		{"one", []Export{{Name: "a", Device: disk}}, ""},
		{"no name", []Export{{Device: disk}, {Name: "a", Device: disk}}, ""},
		{"same name", []Export{{Name: "a", Device: disk}, {Name: "a", Device: disk}}, "taken"},
		{"two defaults", []Export{{Name: "a", Device: disk, Default: true}, {Name: "b", Device: disk, Default: true}}, "default export already"},
		{"default beside empty name", []Export{{Name: "a", Device: disk, Default: true}, {Device: disk}}, "empty name"},
		{"NUL", []Export{{Name: "a\x00b", Device: disk}}, "NUL"},
		{"long", []Export{{Name: strings.Repeat("a", 4097), Device: disk}}, "4097 bytes"},
		{"no device", []Export{{Name: "a"}}, "no device"},
		{"odd size", []Export{{Name: "a", Device: odd}}, "not a multiple"},
		{"small payload", []Export{{Name: "a", Device: small}}, "below 1 MiB"},
		{"long description", []Export{{Name: "a", Device: disk, Description: strings.Repeat("d", 4097)}}, "description"},
	} {
		t.Run(row.name, func(t *testing.T) {
			e, err := NewExports(row.exports...)
			if row.want == "" && (err != nil || len(e.List()) != len(row.exports)) {
				t.Fatalf("got %v, %v", e, err)
			}
			if row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Fatalf("got %v, want %q", err, row.want)
			}
		})
	}
}

// failing is a device that cannot be opened.
type failing struct{ *memory }

func (failing) NewQueue(int) (block.Queue, error) { return nil, io.ErrNoProgress }

// absent is a device whose opening fails when the handshake's time is over, as
// that of a remote disk does whose target is away.
type absent struct {
	*memory
	limit time.Duration
}

func (a absent) NewQueue(int) (block.Queue, error) {
	<-time.After(2 * a.limit)
	return nil, fmt.Errorf("the target is away: try again: %w", syscall.ESHUTDOWN)
}

// A client hears why it does not get a disk, even if that took the time of its
// handshake.
func TestDeviceOpensTooLate(t *testing.T) {
	const limit = time.Second
	f := serve(t, Limits{Handshake: limit}, Export{Name: "x", Device: absent{newMemory(1 << 20), limit}})
	p := f.dial()
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData("x"))
	if text := p.wantReply(optGo, repErrShutdown); !strings.Contains(string(text), "is away: try again") {
		t.Errorf("text %q", text)
	}
	p.wantEnd()
}

func TestDeviceThatDoesNotOpen(t *testing.T) {
	f := serve(t, Limits{}, Export{Name: "x", Device: failing{newMemory(1 << 20)}})
	p := f.dial()
	p.greet(bothFlags)
	p.option(optGo, nbdtest.GoData("x"))
	if text := p.wantReply(optGo, repErrPolicy); !strings.Contains(string(text), io.ErrNoProgress.Error()) {
		t.Errorf("text %q", text)
	}
	if n := f.server.Status().Exports[0].Connections; n != 0 {
		t.Errorf("%d connections counted", n)
	}
}
