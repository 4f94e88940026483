package nbdkernel

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

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
		name string
		r    request
		want string
	}{
		{
			"family",
			request{family: 0x10, command: 3, version: 2, sequence: 1, list: func() (a attributes) { a.text(2, "nbd"); return a }()},
			`1c000000 1000 0500 01000000 00000000  03 02 0000  0800 0200 6e626400`,
		},
		{
			"connect any device",
			request{family: 0x1c, command: commandConnect, version: 1, sequence: 2, list: connectAttributes(AnyIndex, "via+x", settings, []int{5, 6})},
			`78000000 1c00 0500 02000000 00000000  01 01 0000
			 0c00 0200 0000004000000000  0c00 0300 0002000000000000  0c00 0500 0d01000000000000
			 0c00 0400 0200000000000000  0c00 0800 5802000000000000
			 1c00 0780  0c00 0180 0800 0100 05000000  0c00 0180 0800 0100 06000000
			 0a00 0a00 7669612b7800 0000`,
		},
		{
			"connect a device without name",
			request{family: 0x1c, command: commandConnect, version: 1, sequence: 3, list: connectAttributes(3, "", Settings{Size: 512, BlockSize: 4096}, []int{7})},
			`68000000 1c00 0500 03000000 00000000  01 01 0000
			 0800 0100 03000000  0c00 0200 0002000000000000  0c00 0300 0010000000000000  0c00 0500 0000000000000000
			 0c00 0400 0000000000000000  0c00 0800 0000000000000000
			 1000 0780  0c00 0180 0800 0100 07000000`,
		},
		{
			"reconfigure with a new size",
			request{family: 0x1c, command: commandReconfigure, version: 1, sequence: 4, list: reconfigureAttributes(3, "via+x", 4096, settings, []int{7})},
			`68000000 1c00 0500 04000000 00000000  03 01 0000
			 0800 0100 03000000  0a00 0a00 7669612b7800 0000
			 0c00 0200 0010000000000000  0c00 0300 0002000000000000
			 0c00 0400 0200000000000000  0c00 0800 5802000000000000
			 1000 0780  0c00 0180 0800 0100 07000000`,
		},
		{
			"reconfigure",
			request{family: 0x1c, command: commandReconfigure, version: 1, sequence: 5, list: reconfigureAttributes(3, "via+x", 0, settings, []int{7})},
			`50000000 1c00 0500 05000000 00000000  03 01 0000
			 0800 0100 03000000  0a00 0a00 7669612b7800 0000
			 0c00 0400 0200000000000000  0c00 0800 5802000000000000
			 1000 0780  0c00 0180 0800 0100 07000000`,
		},
	} {
		if got, want := row.r.encode(), hexOf(t, row.want); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", row.name, got, want)
		}
	}
}

// What the kernel answers to the request 7 of the family 0x1c.
func TestAnswers(t *testing.T) {
	const reply = `1c000000 1c00 0000 07000000 00000000  01 01 0000  0800 0100 02000000`
	const done = `24000000 0200 0001 07000000 00000000  00000000  10000000 1c00 0500 07000000 00000000`
	for _, row := range []struct {
		name, datagram string
		index          int
		done           bool
		refusal        error
		text           string
	}{
		{"nothing", ``, AnyIndex, false, nil, ""},
		{"acknowledged", done, AnyIndex, true, nil, ""},
		{"reply and acknowledgement", reply + done, 2, true, nil, ""},
		{"reply first", reply, 2, false, nil, ""},
		{
			"of an earlier request", `24000000 0200 0001 06000000 00000000  eaffffff  10000000 1c00 0500 06000000 00000000` + done,
			AnyIndex, true, nil, "",
		},
		{"busy", `24000000 0200 0001 07000000 00000000  f0ffffff  10000000 1c00 0500 07000000 00000000`, AnyIndex, true, syscall.EBUSY, "busy"},
		{
			"with a text", `30000000 0200 0003 07000000 00000000  eaffffff  10000000 1c00 0500 07000000 00000000  0b00 0100 6e6f2077617900 00`,
			AnyIndex, true, syscall.EINVAL, "no way: invalid argument",
		},
		{
			"with the request and a text", `34000000 0200 0002 07000000 00000000  eaffffff  14000000 1c00 0500 07000000 00000000 01010000  0b00 0100 6e6f2077617900 00`,
			AnyIndex, true, syscall.EINVAL, "no way: invalid argument",
		},
		{
			"with a broken text", `28000000 0200 0003 07000000 00000000  eaffffff  10000000 1c00 0500 07000000 00000000  0b00 0100`,
			AnyIndex, true, syscall.EINVAL, "invalid argument",
		},
	} {
		var a answer
		if err := a.decode(hexOf(t, row.datagram), &request{family: 0x1c, sequence: 7}); err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		if a.done != row.done || !errors.Is(a.err, row.refusal) || row.refusal != nil && !strings.Contains(a.err.Error(), row.text) {
			t.Errorf("%s: done %t, error %v", row.name, a.done, a.err)
		}
		if row.index == AnyIndex {
			continue
		}
		if got, err := decodeIndex(a.list); got != row.index || err != nil {
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
	} {
		var a answer
		if err := a.decode(hexOf(t, datagram), &request{family: 0x1c, sequence: 7}); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, list := range map[string]string{
		"no index": `0800 0500 02000000`, "short index": `0700 0100 020000`, "negative index": `0800 0100 ffffffff`,
		"attribute without header": `080001`, "attribute below its header": `0300 0100 02000000`,
	} {
		if n, err := decodeIndex(hexOf(t, list)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: device %d, %v", name, n, err)
		}
		if id, _, err := decodeFamily(hexOf(t, list)); !errors.Is(err, errMalformed) {
			t.Errorf("%s: family %d, %v", name, id, err)
		}
	}
	if id, version, err := decodeFamily(hexOf(t, `0600 0100 1c00 0000  0800 0300 01000000`)); id != 0x1c || version != 1 || err != nil {
		t.Errorf("family %#x, version %d, %v", id, version, err)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(hexOf(f, `1c000000 1c00 0000 07000000 00000000  01 01 0000  0800 0100 02000000 24000000 0200 0001 07000000 00000000  00000000  10000000 1c00 0500 07000000 00000000`))
	f.Add(hexOf(f, `30000000 0200 0003 07000000 00000000  eaffffff  10000000 1c00 0500 07000000 00000000  0b00 0100 6e6f2077617900 00`))
	f.Add(hexOf(f, `0600 0100 1c00 0000  0800 0300 01000000`))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var a answer
		if err := a.decode(b, &request{family: 0x1c, sequence: 7}); err == nil && a.err != nil {
			var errno syscall.Errno
			if !errors.As(a.err, &errno) {
				t.Errorf("refusal %v without errno", a.err)
			}
		}
		for _, list := range [][]byte{b, a.list} {
			if n, err := decodeIndex(list); err == nil && (n < 0 || n > maximumIndex) {
				t.Errorf("device %d", n)
			}
			if id, _, err := decodeFamily(list); err == nil && id == 0 {
				t.Error("family 0")
			}
		}
		if !bytes.Equal(before, b) {
			t.Error("the datagram was changed")
		}
	})
}

// The kernel's own controller of generic netlink is a family too: what is sent and
// taken apart here is what this kernel understands and says.
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
	var list attributes
	list.text(unix.CTRL_ATTR_FAMILY_NAME, "viablk-none")
	if _, err := f.call(unix.CTRL_CMD_GETFAMILY, list); !errors.Is(err, unix.ENOENT) {
		t.Errorf("got %v", err)
	}
	if _, err := f.call(200, nil); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("a command that is not there: %v", err)
	}
}
