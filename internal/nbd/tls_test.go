package nbd

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/nbd/nbdtest"
	"github.com/viablk/viablk/internal/pki"
)

// credentials are what both ends need for TLS.
type credentials struct {
	err     error
	server  *tls.Config            // that verifies its clients
	lenient *tls.Config            // that does not
	clients map[string]*tls.Config // by name; "" has no certificate
}

var (
	issueOnce sync.Once
	issued    credentials
)

// certificates returns credentials that are made once.
func certificates(t testing.TB) *credentials {
	t.Helper()
	issueOnce.Do(func() {
		dir := t.TempDir()
		at := func(name string) string { return filepath.Join(dir, name) }
		keep := func(err error) {
			if issued.err == nil {
				issued.err = err
			}
		}
		keep(pki.Init(at("ca"), "test authority", time.Hour))
		keep(pki.Issue(at("ca"), pki.Server, []string{"localhost"}, at("server"), time.Hour))
		strict, err := pki.NewServerCertificates(at("server"), true)
		keep(err)
		lenient, err := pki.NewServerCertificates(at("server"), false)
		keep(err)
		issued.server, issued.lenient = strict.Config(), lenient.Config()
		issued.clients = map[string]*tls.Config{}
		for _, name := range []string{"alice", "bob"} {
			keep(pki.Issue(at("ca"), pki.Client, []string{name}, at(name), time.Hour))
			issued.clients[name], err = pki.ClientConfig(at(name), "localhost", true)
			keep(err)
		}
		issued.clients[""], err = pki.ClientConfig(at("ca"), "localhost", true)
		keep(err)
	})
	if issued.err != nil {
		t.Fatal(issued.err)
	}
	return &issued
}

// startTLS sends STARTTLS and speaks TLS from then on, with a client's
// certificate.
func (p *peer) startTLS(client string) {
	p.t.Helper()
	p.option(optStartTLS)
	p.wantReply(optStartTLS, repAck)
	c := tls.Client(p.Conn, certificates(p.t).clients[client])
	if err := c.Handshake(); err != nil {
		p.t.Fatalf("TLS handshake: %v", err)
	}
	p.Conn = c
}

// required is a script on a server that requires TLS, after the greeting.
func required(do func(p *peer)) func(t *testing.T) {
	return func(t *testing.T) {
		config := TLS{Config: certificates(t).server, Required: true}
		p := serveTLS(t, config, Limits{}, disks()...).dial()
		p.greet(bothFlags)
		do(p)
	}
}

// clientsOf returns the rights of clients to write.
func clientsOf(t *testing.T, names ...string) *access.Rights {
	t.Helper()
	r, err := access.Parse(names, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// offered is the same on a server that does not require it.
func offered(do func(p *peer)) func(t *testing.T) {
	return func(t *testing.T) {
		exports := append(disks(), Export{Name: "private", Device: newMemory(1 << 20), Rights: clientsOf(t, "bob", "carol")})
		p := serveTLS(t, TLS{Config: certificates(t).server}, Limits{}, exports...).dial()
		p.greet(bothFlags)
		do(p)
	}
}

// wantFlags checks the transmission flags of an export.
func (p *peer) wantFlags(name string, want uint16) {
	p.t.Helper()
	p.option(optInfo, nbdtest.GoData(name))
	if flags := p.infos(optInfo)[infoExport][8:]; !bytes.Equal(flags, be16(want)) {
		p.t.Fatalf("flags % x, want %#x", flags, want)
	}
}

func TestTLS(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"H-20 structured replies are void": offered(func(p *peer) {
			p.speak(structured)
			p.startTLS("alice")
			p.replyMode = simple
			p.wantFlags("disk", fullFlags)
			p.option(optGo, nbdtest.GoData("disk"))
			p.infos(optGo)
			p.wantAlive()
		}),
		"H-20 extended headers are void": offered(func(p *peer) {
			p.speak(extended)
			p.startTLS("alice")
			p.speak(structured) // not ERR_EXT_HEADER_REQD
			p.option(optGo, nbdtest.GoData("disk"))
			p.infos(optGo)
			p.wantAlive()
		}),
		"H-20 contexts are void": offered(func(p *peer) {
			p.speak(structured)
			p.option(optSetMeta, nbdtest.MetaData("disk", contextName))
			p.wantContexts(optSetMeta, contextName)
			p.startTLS("alice")
			p.speak(structured)
			p.startSelected("disk", false)
		}),
		"H-20 CVE-2021-3716 what follows STARTTLS in the clear is not executed": offered(func(p *peer) {
			p.put([]byte("IHAVEOPT"), be32(optStartTLS), be32(0), []byte("IHAVEOPT"), be32(optStructuredReply), be32(0))
			p.wantReply(optStartTLS, repAck)
			c := tls.Client(p.Conn, certificates(p.t).clients["alice"])
			if err := c.Handshake(); err == nil {
				p.t.Fatal("the handshake succeeds behind an injected option")
			}
		}),
		"H-20 options inside TLS": offered(func(p *peer) {
			p.startTLS("alice")
			p.speak(structured)
			p.option(optSetMeta, nbdtest.MetaData("disk", contextName))
			p.wantContexts(optSetMeta, contextName)
			p.startSelected("disk", true)
		}),
		"H-21 STARTTLS twice": required(func(p *peer) {
			p.startTLS("alice")
			p.option(optStartTLS)
			p.wantReply(optStartTLS, repErrInvalid)
			p.wantInSync()
		}),
		"H-21 STARTTLS with data": required(func(p *peer) {
			p.option(optStartTLS, []byte("hello"))
			p.wantReply(optStartTLS, repErrInvalid)
			p.startTLS("alice")
			p.wantInSync()
		}),
		"H-21 nothing but STARTTLS and ABORT before TLS": required(func(p *peer) {
			for _, option := range []uint32{optList, optInfo, optGo, optStructuredReply, optListMeta, optSetMeta, optExtendedHeaders, 77} {
				p.option(option, nbdtest.GoData("disk"))
				p.wantReply(option, repErrTLSReqd)
			}
			p.option(77, make([]byte, 70_000))
			p.wantReply(77, repErrTLSReqd)
			p.option(optGo, []byte("?"))
			p.wantReply(optGo, repErrTLSReqd)
			p.startTLS("alice")
			p.option(optGo, nbdtest.GoData("disk"))
			p.infos(optGo)
			p.wantAlive()
		}),
		"H-21 ABORT before TLS": required(func(p *peer) {
			p.option(optAbort)
			p.wantReply(optAbort, repAck)
			p.wantEnd()
		}),
		"H-21 EXPORT_NAME before TLS": required(func(p *peer) {
			p.option(optExportName, []byte("disk"))
			p.wantEnd()
		}),
		"H-21 EXPORT_NAME inside TLS": required(func(p *peer) {
			p.startTLS("alice")
			p.option(optExportName, []byte("disk"))
			p.get(10)
			p.wantAlive()
		}),
		"plaintext in place of TLS": required(func(p *peer) {
			p.option(optStartTLS)
			p.wantReply(optStartTLS, repAck)
			p.option(optGo, nbdtest.GoData("disk"))
			b, _ := io.ReadAll(p) // an alert perhaps
			if bytes.Contains(b, be64(magicOptionReply)) {
				p.t.Error("an option in the clear is answered")
			}
		}),
		"a client without certificate": required(func(p *peer) {
			p.option(optStartTLS)
			p.wantReply(optStartTLS, repAck)
			c := tls.Client(p.Conn, certificates(p.t).clients[""])
			p.Conn = c
			if c.Handshake() == nil {
				if _, err := c.Read(make([]byte, 1)); err == nil {
					p.t.Error("it is served")
				}
			}
		}),
		"an export for others": offered(func(p *peer) {
			p.option(optGo, nbdtest.GoData("private"))
			p.wantReply(optGo, repErrTLSReqd)
			p.option(optInfo, nbdtest.GoData("absent"))
			p.wantReply(optInfo, repErrTLSReqd)
			p.startTLS("alice")
			// It is answered as one that does not exist.
			same := func(option uint32, private, absent []byte) {
				p.option(option, private)
				text := p.wantReply(option, repErrUnknown)
				p.option(option, absent)
				if other := p.wantReply(option, repErrUnknown); string(text) != strings.ReplaceAll(string(other), "absent", "private") {
					p.t.Errorf("the answers to option %d are %q and %q", option, text, other)
				}
			}
			same(optInfo, nbdtest.GoData("private"), nbdtest.GoData("absent"))
			same(optGo, nbdtest.GoData("private"), nbdtest.GoData("absent"))
			p.speak(structured)
			same(optSetMeta, nbdtest.MetaData("private", contextName), nbdtest.MetaData("absent", contextName))
			p.option(optList)
			for {
				kind, data := p.reply(optList)
				if kind == repAck {
					break
				}
				if bytes.Contains(data, []byte("private")) {
					p.t.Error("it is listed")
				}
			}
			p.option(optExportName, []byte("private"))
			p.wantEnd()
		}),
		"an export of one's own": offered(func(p *peer) {
			p.startTLS("bob")
			p.option(optGo, nbdtest.GoData("private"))
			p.infos(optGo)
			p.wantAlive()
		}),
	} {
		t.Run(name, test)
	}
}

// A name in an unverified certificate opens no export.
func TestUnverifiedNames(t *testing.T) {
	var text logText
	f := serveLog(t, &text, TLS{Config: certificates(t).lenient, Required: true}, Limits{},
		Export{Name: "private", Device: newMemory(1 << 20), Rights: clientsOf(t, "bob")})
	for _, client := range []string{"bob", ""} {
		p := f.dial()
		p.greet(bothFlags)
		p.startTLS(client)
		p.option(optGo, nbdtest.GoData("private"))
		p.wantReply(optGo, repErrUnknown)
	}
	if !strings.Contains(text.String(), "not on the export's list") {
		t.Errorf("the log does not say why:\n%s", &text)
	}
}

// Any mixture of sizes comes through, over a socket that takes little at a
// time.
func TestLargeTransfersOverTLS(t *testing.T) {
	m := newMemory(64 << 20)
	f := serveTLS(t, TLS{Config: certificates(t).server, Required: true}, Limits{}, Export{Device: m})
	p := f.connectExport("", structured)
	data := pattern(64<<20, 9)
	p.want(0, 0, cmdWrite, 0, 64<<20, data)
	const n = 40
	var stream []byte
	for i := range uint64(n) {
		stream = append(stream, p.request(0, cmdRead, i, i*1000, uint32(1+i*i*1000))...)
	}
	go p.Write(stream)
	for range n {
		a := p.answer(func(uint64) int { return 0 })
		if a.errno != 0 || !bytes.Equal(a.data, data[a.cookie*1000:][:1+a.cookie*a.cookie*1000]) {
			t.Fatalf("READ %d: errno %d, wrong data", a.cookie, a.errno)
		}
	}
	p.disconnect()
}

// In steady state only crypto/tls allocates, some bytes for a record that it
// reads.
func TestFewAllocationsOverTLS(t *testing.T) {
	f := serveTLS(t, TLS{Config: certificates(t).server, Required: true}, Limits{}, Export{Device: newMemory(1 << 20)})
	for _, command := range []uint16{cmdRead, cmdWrite} {
		t.Run(fmt.Sprintf("command %d", command), func(t *testing.T) {
			l := newLoad(f.connectExport("", simple).Conn, command, 4096, 32)
			round := func() {
				if err := l.round(); err != nil {
					t.Fatal(err)
				}
			}
			for range 100 {
				round()
			}
			if n := testing.AllocsPerRun(500, round); n >= 32 {
				t.Errorf("%v allocations per 32 requests", n)
			}
		})
	}
}

func BenchmarkTLS(b *testing.B) {
	for _, row := range []struct {
		name    string
		command uint16
		length  uint32
		depth   int
	}{
		{"read/4KiB/1", cmdRead, 4 << 10, 1},
		{"read/4KiB/32", cmdRead, 4 << 10, 32},
		{"read/128KiB/16", cmdRead, 128 << 10, 16},
		{"write/4KiB/32", cmdWrite, 4 << 10, 32},
	} {
		b.Run(row.name, func(b *testing.B) {
			server, client := pair(b)
			table, err := NewExports(Export{Device: newMemory(8 << 20)})
			if err != nil {
				b.Fatal(err)
			}
			s := &Server{Exports: table, TLS: TLS{Config: certificates(b).server}}
			ended := make(chan struct{})
			go func() { s.serve(s.admitConn(nil, server)); close(ended) }()
			defer func() { client.Close(); <-ended }()
			conn := startTLSClient(b, client)
			l := newLoad(conn, row.command, row.length, row.depth)
			b.SetBytes(int64(row.length))
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += row.depth {
				if err := l.round(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// startTLSClient negotiates up to transmission with the shortest handshake
// there is.
func startTLSClient(b *testing.B, c net.Conn) net.Conn {
	b.Helper()
	get := func(c net.Conn, n int) {
		if _, err := io.ReadFull(c, make([]byte, n)); err != nil {
			b.Fatal(err)
		}
	}
	get(c, greetingSize)
	c.Write(bytes.Join([][]byte{be32(3), []byte("IHAVEOPT"), be32(optStartTLS), be32(0)}, nil))
	get(c, replyHeaderSize)
	t := tls.Client(c, certificates(b).clients["alice"])
	t.Write(bytes.Join([][]byte{[]byte("IHAVEOPT"), be32(optExportName), be32(0)}, nil))
	get(t, 10)
	return t
}
