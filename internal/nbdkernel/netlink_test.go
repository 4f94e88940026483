package nbdkernel

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"
)

// hexOf returns bytes without the spaces that make them readable.
func hexOf(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The requests, byte by byte, as a little-endian kernel expects them.
func TestRequests(t *testing.T) {
	settings := Settings{
		Size: 1 << 30, BlockSize: 512, Flags: 0x10d,
		IOTimeout: 1500 * time.Millisecond, DeadTimeout: 10 * time.Minute,
	}
	for _, row := range []struct {
		name    string
		family  uint16
		version uint8
		command uint8
		list    *netlink.AttributeEncoder
		want    string // with the number 0 and from the port 0
	}{
		{
			"family", 0x10, 2, 3, func() *netlink.AttributeEncoder {
				list := netlink.NewAttributeEncoder()
				list.String(2, "nbd")
				return list
			}(),
			`1c000000 1000 0500 00000000 00000000  03 02 0000  0800 0200 6e626400`,
		},
		{
			"connect any device", 0x1c, 1, commandConnect, connectAttributes(AnyIndex, "via+x", settings, []int{5, 6}),
			`78000000 1c00 0500 00000000 00000000  01 01 0000
			 0c00 0200 0000004000000000  0c00 0300 0002000000000000  0c00 0500 0d01000000000000
			 0c00 0400 0200000000000000  0c00 0800 5802000000000000
			 1c00 0780  0c00 0180 0800 0100 05000000  0c00 0180 0800 0100 06000000
			 0a00 0a00 7669612b7800 0000`,
		},
		{
			"connect a device without name", 0x1c, 1, commandConnect, connectAttributes(3, "", Settings{Size: 512, BlockSize: 4096}, []int{7}),
			`68000000 1c00 0500 00000000 00000000  01 01 0000
			 0800 0100 03000000  0c00 0200 0002000000000000  0c00 0300 0010000000000000  0c00 0500 0000000000000000
			 0c00 0400 0000000000000000  0c00 0800 0000000000000000
			 1000 0780  0c00 0180 0800 0100 07000000`,
		},
		{
			"resize", 0x1c, 1, commandReconfigure, resizeAttributes(3, "via+x", settings),
			`40000000 1c00 0500 00000000 00000000  03 01 0000
			 0800 0100 03000000  0a00 0a00 7669612b7800 0000
			 0c00 0200 0000004000000000  0c00 0300 0002000000000000`,
		},
		{
			"reconnect", 0x1c, 1, commandReconfigure, reconnectAttributes(3, "via+x", settings, []int{7}),
			`50000000 1c00 0500 00000000 00000000  03 01 0000
			 0800 0100 03000000  0a00 0a00 7669612b7800 0000
			 0c00 0400 0200000000000000  0c00 0800 5802000000000000
			 1000 0780  0c00 0180 0800 0100 07000000`,
		},
	} {
		got, err := sentBy(func(f *family) error {
			f.id, f.version = row.family, row.version
			_, err := (&Driver{call: f.call}).ask(row.command, row.list)
			return err
		})
		if want := hexOf(t, row.want); !bytes.Equal(got, want) || err != nil {
			t.Errorf("%s, %v:\n got %x\nwant %x", row.name, err, got, want)
		}
	}
	long := netlink.NewAttributeEncoder()
	long.String(attributeBackend, strings.Repeat("x", 1<<16))
	if b, err := sentBy(func(f *family) error { _, err := (&Driver{call: f.call}).ask(commandConnect, long); return err }); b != nil || err == nil {
		t.Errorf("an attribute that is too long: %d bytes, %v", len(b), err)
	}
}

// sentBy returns the bytes that a call sends, but with its number and port 0.
// Each request is acknowledged.
func sentBy(call func(*family) error) (sent []byte, err error) {
	f := &family{conn: genetlink.NewConn(nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
		m := requests[0]
		done := netlink.Message{Header: netlink.Header{Type: netlink.Error, Sequence: m.Header.Sequence}, Data: make([]byte, shortestAcknowledgement)}
		m.Header.Sequence, m.Header.PID = 0, 0
		var err error
		sent, err = m.MarshalBinary()
		return []netlink.Message{done}, err
	}))}
	defer f.close()
	err = call(f)
	return sent, err
}

// script is a family whose kernel is the test.
type script struct {
	*family
	t      testing.TB
	socket int // of the test
	port   uint32
}

func newScript(t testing.TB) *script {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_USERSOCK, &netlink.Config{MessageBufferSize: maximumAnswer})
	if err != nil {
		t.Fatal(err)
	}
	s := &script{family: &family{conn: genetlink.NewConn(c)}, t: t, port: c.PID()}
	t.Cleanup(s.close)
	if s.socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.socket) })
	return s
}

// sendDatagram sends a datagram.
func (s *script) sendDatagram(b []byte) {
	s.t.Helper()
	if err := unix.Sendto(s.socket, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: s.port}); err != nil {
		s.t.Fatal(err)
	}
}

// errMore is the answer to a request whose answer is not complete.
const errMore = syscall.EDOM

const moreAnswer = `24000000 0200 0001 07000000 00000000  dfffffff  10000000 1c00 0500 07000000 00000000`

// receive is what the request 7 of the family 0x1c is answered with datagrams.
// An answer that does not end with them ends with errMore.
func (s *script) receive(datagrams ...[]byte) (list []byte, err error) {
	s.t.Helper()
	for _, b := range datagrams {
		s.sendDatagram(b)
	}
	s.sendDatagram(hexOf(s.t, moreAnswer))
	list, err = s.answer(netlink.Header{Type: 0x1c, Sequence: 7})
	for failure := err; !errors.Is(failure, errMore); {
		_, failure = s.answer(netlink.Header{Type: 0x1c, Sequence: 7})
	}
	return list, err
}

// Answers of the kernel to the request 7 of the family 0x1c. The kernel sends
// each message in a datagram of its own, but might put them into one.
func TestAnswers(t *testing.T) {
	const reply = `1c000000 1c00 0000 07000000 00000000  01 01 0000  0800 0100 02000000`
	const done = `24000000 0200 0001 07000000 00000000  00000000  10000000 1c00 0500 07000000 00000000`
	const earlier = `24000000 0200 0001 06000000 00000000  eaffffff  10000000 1c00 0500 06000000 00000000`
	for _, row := range []struct {
		name, datagrams string // separated by |
		index           int
		refusal         error
		text            string
	}{
		{"nothing", ``, AnyIndex, errMore, ""},
		{"acknowledged", done, AnyIndex, nil, ""},
		{"reply and acknowledgement", reply + done, 2, nil, ""},
		{"reply, then acknowledgement", reply + "|" + done, 2, nil, ""},
		{"reply first", reply, AnyIndex, errMore, ""},
		{"refusal of an earlier request", earlier + "|" + done, AnyIndex, nil, ""},
		{"reply to an earlier request", strings.Replace(reply, "07000000", "06000000", 1) + done, AnyIndex, nil, ""},
		{"end of an earlier request", strings.Replace(done, "07000000", "06000000", 1) + "|" + reply + done, 2, nil, ""},
		{"of another family", strings.Replace(reply, "1c00 0000", "1d00 0000", 1) + done, AnyIndex, nil, ""},
		{"busy", `24000000 0200 0001 07000000 00000000  f0ffffff  10000000 1c00 0500 07000000 00000000`, AnyIndex, syscall.EBUSY, "device or resource busy"},
		{
			"with a text", `30000000 0200 0003 07000000 00000000  eaffffff  10000000 1c00 0500 07000000 00000000  0b00 0100 6e6f2077617900 00`,
			AnyIndex, syscall.EINVAL, "no way: invalid argument",
		},
		{
			"with the request and a text", `34000000 0200 0002 07000000 00000000  eaffffff  14000000 1c00 0500 07000000 00000000 01010000  0b00 0100 6e6f2077617900 00`,
			AnyIndex, syscall.EINVAL, "no way: invalid argument",
		},
		{
			"with a broken text", `28000000 0200 0003 07000000 00000000  eaffffff  10000000 1c00 0500 07000000 00000000  0b00 0100`,
			AnyIndex, syscall.EINVAL, "invalid argument",
		},
	} {
		var datagrams [][]byte
		for d := range strings.SplitSeq(row.datagrams, "|") {
			if d != "" {
				datagrams = append(datagrams, hexOf(t, d))
			}
		}
		list, err := newScript(t).receive(datagrams...)
		if !errors.Is(err, row.refusal) || row.refusal != nil && !strings.HasPrefix(err.Error(), row.text) {
			t.Errorf("%s: %v", row.name, err)
		}
		if row.index == AnyIndex {
			if len(list) > 0 {
				t.Errorf("%s: reply %x", row.name, list)
			}
			continue
		}
		if got, err := decodeIndex(list); got != row.index || err != nil {
			t.Errorf("%s: device %d, %v", row.name, got, err)
		}
	}
}

func TestMalformedAnswers(t *testing.T) {
	for name, datagram := range map[string]string{
		"short header":          `1c0000`,
		"length below a header": `0f000000 1c00 0000 07000000 00000000`,
		"length beyond the end": `1d000000 1c00 0000 07000000 00000000  01 01 0000  0800 0100 02000000`,
		"short reply":           `12000000 1c00 0000 07000000 00000000  01 01`,
		"short acknowledgement": `14000000 0200 0000 07000000 00000000  00000000`,
		"short errno":           `12000000 0200 0000 07000000 00000000  0000`,
		"long":                  strings.Repeat("00", maximumAnswer+4),
	} {
		if list, err := newScript(t).receive(hexOf(t, datagram)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %x, %v", name, list, err)
		}
	}
	for name, list := range map[string]string{
		"no index": `0800 0500 02000000`, "short index": `0700 0100 020000`, "negative index": `0800 0100 ffffffff`,
		"attribute without header": `080001`, "attribute below its header": `0300 0100 02000000`,
	} {
		if n, err := decodeIndex(hexOf(t, list)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: device %d, %v", name, n, err)
		}
		if f, err := foundIn(hexOf(t, list)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: family %d, %v", name, f.id, err)
		}
	}
	if f, err := foundIn(hexOf(t, `0600 0100 1c00 0000  0800 0300 01000000`)); f.id != 0x1c || f.version != 1 || err != nil {
		t.Errorf("family %#x, version %d, %v", f.id, f.version, err)
	}
}

// foundIn returns the family that the kernel describes with a list.
func foundIn(list []byte) (*family, error) {
	f := &family{conn: genetlink.NewConn(nltest.Dial(func(requests []netlink.Message) ([]netlink.Message, error) {
		header := netlink.Header{Type: unix.GENL_ID_CTRL, Sequence: requests[0].Header.Sequence}
		return []netlink.Message{{Header: header, Data: append([]byte{1, 2, 0, 0}, list...)}}, nil
	}))}
	defer f.close()
	return f, f.find("nbd")
}

func FuzzAnswer(f *testing.F) {
	f.Add(hexOf(f, `1c000000 1c00 0000 07000000 00000000  01 01 0000  0800 0100 02000000 24000000 0200 0001 07000000 00000000  00000000  10000000 1c00 0500 07000000 00000000`))
	f.Add(hexOf(f, `30000000 0200 0003 07000000 00000000  eaffffff  10000000 1c00 0500 07000000 00000000  0b00 0100 6e6f2077617900 00`))
	f.Add(hexOf(f, `0600 0100 1c00 0000  0800 0300 01000000`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > maximumAnswer {
			return // the kernel does not send it; it is TestMalformedAnswers's
		}
		list, err := newScript(t).receive(b)
		var errno syscall.Errno
		if err != nil && !errors.As(err, &errno) && !errors.Is(err, errMalformed) {
			t.Errorf("refusal %v without errno", err)
		}
		for _, list := range [][]byte{b, list} {
			if n, err := decodeIndex(list); err == nil && (n < 0 || n > maximumIndex) {
				t.Errorf("device %d", n)
			}
			if f, err := foundIn(list); err == nil && f.id == 0 {
				t.Error("family 0")
			}
		}
	})
}

// The kernel's own controller of generic netlink is a family too: what is sent
// and taken apart here is what this kernel understands and says.
func TestThisKernel(t *testing.T) {
	f, err := openFamily("nlctrl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if f.id != unix.GENL_ID_CTRL || f.version == 0 {
		t.Errorf("the controller is family %d, version %d", f.id, f.version)
	}
	if _, err := openFamily("viablk-none"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a family that is not there: %v", err)
	}
	d := &Driver{call: f.call}
	ask := func(name string) ([]byte, error) {
		list := netlink.NewAttributeEncoder()
		list.String(unix.CTRL_ATTR_FAMILY_NAME, name)
		return d.ask(unix.CTRL_CMD_GETFAMILY, list)
	}
	for range 3 { // an acknowledgement is not taken for the next answer
		if _, err := ask("viablk-none"); !errors.Is(err, unix.ENOENT) {
			t.Errorf("got %v", err)
		}
		reply, err := ask("nlctrl")
		if found, failure := foundIn(reply); err != nil || failure != nil || found.id != unix.GENL_ID_CTRL {
			t.Errorf("family %d, %v, %v", found.id, err, failure)
		}
	}
	if _, err := f.call(200, nil); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a command that is not there: %v", err)
	}
}

// Another socket cannot answer in place of the kernel.
func TestOnlyTheKernelAnswers(t *testing.T) {
	f, err := openFamily("nlctrl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	raw, err := f.conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var port uint32
	if err := raw.Control(func(fd uintptr) {
		at, _ := unix.Getsockname(int(fd))
		port = at.(*unix.SockaddrNetlink).Pid
	}); err != nil {
		t.Fatal(err)
	}
	liar, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(liar)
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: port}
	if err := unix.Sendto(liar, hexOf(t, moreAnswer), 0, to); err != unix.ECONNREFUSED && err != unix.EPERM {
		t.Errorf("a message of another socket to port %d: %v", port, err)
	}
}
