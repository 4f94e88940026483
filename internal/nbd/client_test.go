package nbd

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// connect dials without a script.
func (f *fixture) connect() net.Conn {
	f.t.Helper()
	c, err := net.Dial("unix", f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func TestInfo(t *testing.T) {
	f := serve(t, Limits{}, disks()...)
	got, err := Client{}.Info(t.Context(), f.connect(), "")
	want := ExportInfo{
		Name: "disk", Description: "the first one", Size: 8 << 20, CanCache: true, CanDF: true, CanFastZero: true, CanFlush: true,
		CanFUA: true, CanMultiConn: true, CanTrim: true, CanZero: true,
		BlockMinimum: 1, BlockPreferred: 4096, BlockMaximum: 64 << 20,
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	var refused *RefusedError
	if _, err := new(Client).Info(t.Context(), f.connect(), "absent"); !errors.As(err, &refused) || refused.Reply != repErrUnknown {
		t.Errorf("unknown export: %v", err)
	}
	if _, err := new(Client).Info(t.Context(), f.connect(), "a\x00b"); err == nil {
		t.Error("name with NUL accepted")
	}
}

func TestList(t *testing.T) {
	exports := disks()
	for i := range 100 {
		exports = append(exports, Export{Name: fmt.Sprintf("disk %d", i), Device: newMemory(int64(i) << 10)})
	}
	f := serve(t, Limits{}, exports...)
	list, err := Client{}.List(t.Context(), f.connect())
	if err != nil || len(list) != len(exports) {
		t.Fatalf("%d exports, %v", len(list), err)
	}
	for i, e := range list {
		m := exports[i].Device.(*memory)
		if e.Name != exports[i].Name || e.Size != m.info.Size || e.Error != "" || e.Description != exports[i].Description {
			t.Errorf("export %d: %+v", i, e)
		}
	}
	if !list[3].ReadOnly || list[1].BlockMinimum != 4096 {
		t.Errorf("%+v", list[:4])
	}
}

// The names in JSON are nbdinfo's, and so are the values.
func TestAgreesWithNbdinfo(t *testing.T) {
	f := serve(t, Limits{}, disks()...)
	out, err := exec.Command("nbdinfo", "--json", "nbd+unix:///disk?socket="+f.path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var printed struct {
		Exports []map[string]any `json:"exports"`
	}
	if err := json.Unmarshal(out, &printed); err != nil {
		t.Fatal(err)
	}
	info, err := Client{}.Info(t.Context(), f.connect(), "disk")
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	var ours map[string]any
	if err := json.Unmarshal(b, &ours); err != nil {
		t.Fatal(err)
	}
	if len(ours) < 15 {
		t.Errorf("only %d fields", len(ours))
	}
	for name, value := range ours {
		if theirs, ok := printed.Exports[0][name]; !ok || theirs != value {
			t.Errorf("%s: %v, nbdinfo has %v", name, value, theirs)
		}
	}
}

// optionReply is the bytes of a server's reply.
func optionReply(option, kind uint32, data ...[]byte) []byte {
	all := bytes.Join(data, nil)
	return append(appendReplyHeader(nil, option, kind, len(all)), all...)
}

// Replies of servers before the final one.
var (
	greeting = []byte("NBDMAGICIHAVEOPT\x00\x03")
	ack      = optionReply(optStructuredReply, repAck)
)

// exportInformation is the data of the information about an export of n bytes.
func exportInformation(n uint64) []byte {
	return append(append(be16(infoExport), be64(n)...), be16(1)...)
}

// badServers lie about lengths, leave, or say what makes no sense: C-1, C-2,
// C-4 and the class of CVE-2023-5215.
var badServers = []struct {
	name   string
	list   bool
	stream [][]byte
	want   string // of the error; empty: none
}{
	{"good", false, [][]byte{greeting, ack, optionReply(optInfo, repInfo, exportInformation(5)), optionReply(optInfo, repAck)}, ""},
	{"C-1 without structured replies", false, [][]byte{
		greeting, optionReply(optStructuredReply, repErrUnsupported),
		optionReply(optInfo, repInfo, exportInformation(5)), optionReply(optInfo, repAck),
	}, ""},
	{"C-1 unknown information", false, [][]byte{
		greeting, ack, optionReply(optInfo, repInfo, be16(77), make([]byte, 50)),
		optionReply(optInfo, repInfo, exportInformation(5)), optionReply(optInfo, repAck),
	}, ""},
	{"C-2 negative size", false, [][]byte{greeting, ack, optionReply(optInfo, repInfo, exportInformation(1<<63))}, "out of range"},
	{"C-2 reply of 4 GiB", false, [][]byte{greeting, ack, appendReplyHeader(nil, optInfo, repInfo, 0xffffffff)}, "reply of 4294967295 bytes"},
	{"C-2 name longer than the reply", true, [][]byte{greeting, ack, optionReply(optList, repServer, be32(0xffffffff), []byte("a"))}, "exceeds"},
	{"C-2 list without end", true, [][]byte{greeting, ack, bytes.Repeat(optionReply(optList, repServer, be32(4000), make([]byte, 4000)), 1)}, "NUL"},
	{"C-2 endless list", true, [][]byte{greeting, ack, bytes.Repeat(optionReply(optList, repServer, be32(4000), bytes.Repeat([]byte("a"), 8000)), 3000)}, "bytes of replies"},
	{"no size", false, [][]byte{greeting, ack, optionReply(optInfo, repAck)}, "did not tell the size"},
	{"short information", false, [][]byte{greeting, ack, optionReply(optInfo, repInfo, []byte{0})}, "unexpected reply"},
	{"short export information", false, [][]byte{greeting, ack, optionReply(optInfo, repInfo, exportInformation(5)[:10])}, "export information"},
	{"short block size", false, [][]byte{greeting, ack, optionReply(optInfo, repInfo, be16(infoBlockSize), be32(1))}, "block size"},
	{"reply to something else", false, [][]byte{greeting, ack, optionReply(optList, repAck)}, "reply to option"},
	{"bad magic", false, [][]byte{greeting, ack, make([]byte, 40)}, "magic"},
	{"refusal with text", false, [][]byte{greeting, ack, optionReply(optInfo, repErrPolicy, []byte("no\x1b[2J way"))}, `forbidden ("no\x1b[2J way")`},
	{"not NBD", false, [][]byte{[]byte("SSH-2.0-OpenSSH_9.2p1 Debian")}, "not an NBD server"},
	{"old style", false, [][]byte{[]byte("NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x03")}, "fixed newstyle"},
	{"C-4 gone at once", false, nil, "EOF"},
	{"C-4 gone in a reply", true, [][]byte{greeting, ack, optionReply(optList, repServer, be32(4), []byte("disk"))[:22]}, "EOF"},
}

func TestBadServers(t *testing.T) {
	for _, row := range badServers {
		t.Run(row.name, func(t *testing.T) {
			server, client := pair(t)
			go func() {
				server.Write(bytes.Join(row.stream, nil))
				// This server ignores the requests of the client.
				server.(*net.UnixConn).CloseWrite()
				io.Copy(io.Discard, server)
				server.Close()
			}()
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			var err error
			if row.list {
				_, err = Client{}.List(ctx, client)
			} else {
				_, err = Client{}.Info(ctx, client, "disk")
			}
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

// plainServers have no TLS, or an attacker on the path says so: C-3, the class
// of CVE-2019-14842.
var plainServers = []struct {
	name  string
	reply [][]byte // to STARTTLS
	want  string
}{
	{"C-3 STARTTLS is not supported", [][]byte{optionReply(optStartTLS, repErrUnsupported)}, "start TLS"},
	{"C-3 STARTTLS is refused", [][]byte{optionReply(optStartTLS, repErrPolicy, []byte("not today"))}, "start TLS"},
	{"C-3 STARTTLS is not answered", [][]byte{ack, optionReply(optInfo, repInfo, exportInformation(5)), optionReply(optInfo, repAck)}, "start TLS"},
	{"C-3 plaintext behind the ACK", [][]byte{
		optionReply(optStartTLS, repAck), ack,
		optionReply(optInfo, repInfo, exportInformation(5)), optionReply(optInfo, repAck),
	}, "TLS"},
	{"C-3 gone behind the ACK", [][]byte{optionReply(optStartTLS, repAck)}, "EOF"},
}

// A client that wants TLS says nothing of what it wants to a server without.
func TestClientNeverFallsBackToPlaintext(t *testing.T) {
	for _, row := range plainServers {
		t.Run(row.name, func(t *testing.T) {
			server, client := pair(t)
			heard := make(chan []byte, 1)
			go func() {
				server.Write(append(bytes.Clone(greeting), bytes.Join(row.reply, nil)...))
				server.(*net.UnixConn).CloseWrite()
				b, _ := io.ReadAll(server)
				server.Close()
				heard <- b
			}()
			ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
			defer cancel()
			c := Client{TLS: certificates(t).clients["alice"]}
			if _, err := c.Info(ctx, client, "secret name"); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want %q", err, row.want)
			}
			said := <-heard
			allowed := bytes.Join([][]byte{be32(3), []byte("IHAVEOPT"), be32(optStartTLS), be32(0)}, nil)
			if rest, ok := bytes.CutPrefix(said, allowed); !ok || bytes.Contains(rest, []byte("IHAVEOPT")) || bytes.Contains(said, []byte("secret")) {
				t.Errorf("the client said %q", said)
			}
		})
	}
}

// A certificate for another host is refused: C-3, the class of
// CVE-2024-7383.
func TestClientChecksWhoTheServerIs(t *testing.T) {
	f := serveTLS(t, TLS{Config: certificates(t).server, Required: true}, Limits{}, disks()...)
	good := certificates(t).clients["alice"]
	for _, row := range []struct {
		name   string
		change func(*tls.Config)
		want   string // of the error; empty: none
	}{
		{"good", func(*tls.Config) {}, ""},
		{"C-3 another name", func(c *tls.Config) { c.ServerName = "elsewhere.example" }, "elsewhere.example"},
		{"C-3 a name that only begins alike", func(c *tls.Config) { c.ServerName = "localhost.example" }, "localhost.example"},
		{"C-3 an address", func(c *tls.Config) { c.ServerName = "127.0.0.2" }, "127.0.0.2"},
		{"C-3 unknown authority", func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }, "unknown authority"},
		{"C-3 older TLS only", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }, "protocol version"},
	} {
		t.Run(row.name, func(t *testing.T) {
			config := good.Clone()
			row.change(config)
			_, err := Client{TLS: config}.Info(t.Context(), f.connect(), "disk")
			if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
				t.Errorf("got %v, want %q", err, row.want)
			}
		})
	}
}

// A server that says nothing is left with the context.
func TestSilentServer(t *testing.T) {
	server, client := pair(t)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := new(Client).List(ctx, client); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
