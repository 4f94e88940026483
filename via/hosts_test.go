package via

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

func TestParseHosts(t *testing.T) {
	for _, c := range []struct {
		name, text string
		addresses  map[string][]string
		names      map[string]string
	}{
		{"empty", "", nil, nil},
		{"blanks and comments", " \t\r\n\n# a comment\n  #another", nil, nil},
		{"no line end", "10.0.0.1 a", map[string][]string{"a": {"10.0.0.1"}}, map[string]string{"10.0.0.1": "a"}},
		{"dos", "10.0.0.1\ta\r\n10.0.0.2 b\r\n", map[string][]string{"a": {"10.0.0.1"}, "b": {"10.0.0.2"}}, nil},
		{
			"several addresses keep their order", "z x\n/run/a.sock x\nm x y",
			map[string][]string{"x": {"z", "/run/a.sock", "m"}, "y": {"m"}},
			map[string]string{"m": "x"},
		},
		{
			"case", "h Alpha ALPHA\nh alpha beta",
			map[string][]string{"alpha": {"h"}, "aLPHa": {"h"}, "BETA": {"h"}},
			map[string]string{"h": "Alpha"},
		},
		{"comment behind", "h a #b\nh2 c # d e", map[string][]string{"a": {"h"}, "c": {"h2"}}, nil},
		{"# inside an address", "/run/a#b x", map[string][]string{"x": {"/run/a#b"}}, nil},
		{
			"escapes", `\057my\040disk\043\134\377 x`,
			map[string][]string{"x": {"/my disk#\\\xff"}},
			map[string]string{"/my disk#\\\xff": "x"},
		},
		{"raw bytes", "/d\xc3\xa4\xff x", map[string][]string{"x": {"/d\xc3\xa4\xff"}}, nil},
		{"name characters", "h 0.a-B_9", map[string][]string{"0.a-b_9": {"h"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := ParseHosts(iotest.OneByteReader(strings.NewReader(c.text)))
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range c.addresses {
				if got, err := h.AddressesOf(context.Background(), name); err != nil || !slices.Equal(got, want) {
					t.Errorf("addresses of %s: %q, %v; want %q", name, got, err, want)
				}
			}
			for host, want := range c.names {
				if got, err := h.NameOf(context.Background(), host); err != nil || got != want {
					t.Errorf("name of %s: %q, %v; want %q", host, got, err, want)
				}
			}
			if c.addresses == nil && len(h.addresses)+len(h.names) != 0 {
				t.Errorf("an empty table has %v", h.addresses)
			}
		})
	}
}

func TestParseHostsRefuses(t *testing.T) {
	long := strings.Repeat("x", maxHostsLine)
	for _, c := range []struct{ name, text, says string }{
		{"no name", "\n\nhost", "line 3: "},
		{"no name but a comment", "host # a", "has no name"},
		{"blank in a name", "h a\nh b!", `line 2: name service error: name "b!"`},
		{"comment in a name", "h a#b", `'#' at byte 1`},
		{"name begins with a dash", "h -a", "byte 0"},
		{"name is not ascii", "h \u212a", "byte 0"},
		{"name is too long", "h " + strings.Repeat("n", maxHostName+1), "256 bytes"},
		{"short escape", `\04 x`, "octal"},
		{"escape at the end", `a\ x`, "octal"},
		{"escape of no byte", `\400 x`, "octal"},
		{"escape with 8", `\048 x`, "octal"},
		{"zero", `a\000b x`, "zero byte"},
		{"raw zero", "a\x00b x", "control byte"},
		{"raw control byte", "a\x1b[1m x", "control byte 0x1b"},
		{"line is too long", "h a\nh " + long, "line 2: "},
		{"comment is too long", "#" + long, "line 1: "},
		{"table is too long", strings.Repeat("#\n", maxHostsBytes/2) + "#", "more than 1048576 bytes"},
		{"too many entries", strings.Repeat("h a a a a a a a a\n", maxHostsEntries/8) + "h a", "line 8193: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			h, err := ParseHosts(strings.NewReader(c.text))
			if h != nil || !errors.Is(err, ErrNameService) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want one that says %q", err, c.says)
			}
		})
	}
	if _, err := ParseHosts(iotest.ErrReader(fs.ErrClosed)); !errors.Is(err, fs.ErrClosed) || !errors.Is(err, ErrNameService) {
		t.Errorf("a reader's error became %v", err)
	}
}

func TestHostsUnknownName(t *testing.T) {
	h, err := ParseHosts(strings.NewReader("/k kelvin\n"))
	if err != nil {
		t.Fatal(err)
	}
	// The Kelvin sign is K in lower case.
	for _, name := range []string{"", "k", "kelvin ", "/k", "\u212aelvin", strings.Repeat("k", 1<<20)} {
		if got, err := h.AddressesOf(context.Background(), name); got != nil || !errors.Is(err, ErrNameService) {
			t.Errorf("addresses of %.20q: %q, %v", name, got, err)
		}
	}
	for _, host := range []string{"", "/", "/K", "/k ", "kelvin"} {
		if got, err := h.NameOf(context.Background(), host); got != "" || !errors.Is(err, ErrNameService) {
			t.Errorf("name of %q: %q, %v", host, got, err)
		}
	}
}

func TestParseHostsAtTheLimits(t *testing.T) {
	line := "h a"
	for _, text := range []string{
		line + strings.Repeat(" ", maxHostsLine-len(line)) + "\n",
		strings.Repeat("#\n", (maxHostsBytes-4)/2) + line + "\n",
		strings.Repeat("h a a a a a a a a\n", maxHostsEntries/8),
		"h " + strings.Repeat("n", maxHostName),
	} {
		if h, err := ParseHosts(strings.NewReader(text)); err != nil || len(h.addresses) != 1 {
			t.Errorf("%d bytes at the limit: %v", len(text), err)
		}
	}
}

func TestReadHosts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	if _, err := ReadHosts(path); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, ErrNameService) {
		t.Errorf("no file: %v", err)
	}
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/run/a.sock alpha\n!\n")
	if _, err := ReadHosts(path); !errors.Is(err, ErrNameService) || !strings.Contains(err.Error(), path+": hosts line 2: ") {
		t.Errorf("a wrong line: %v", err)
	}
	write("/run/a.sock alpha\n")
	h, err := ReadHosts(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.AddressesOf(context.Background(), "alpha")
	if err != nil || !slices.Equal(got, []string{"/run/a.sock"}) {
		t.Fatalf("addresses %q, %v", got, err)
	}
	got[0] = "changed" // the caller's
	if got, _ := h.AddressesOf(context.Background(), "alpha"); got[0] != "/run/a.sock" {
		t.Errorf("a caller changed the table to %q", got)
	}
}

// escape writes an address in the table's form; every byte that sometimes may
// says whether one that needs no escape gets it all the same.
func escape(address string, sometimes func() bool) string {
	var b strings.Builder
	for i, c := range []byte(address) {
		if c <= ' ' || c == 0x7f || c == '\\' || i == 0 && c == '#' || sometimes() {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// A table written in any of the ways that its form allows is read as what a
// plain map has.
func TestHostsRoundTrip(t *testing.T) {
	blanks := rapid.StringMatching(`[ \t\r]{1,3}`)
	comment := rapid.StringMatching(`([ \t]+#[^\n\x00]{0,10})?`)
	name := rapid.StringMatching(`[A-Ca-c0][A-Ba-b._-]{0,2}`)
	address := rapid.Custom(func(t *rapid.T) string {
		return string(rapid.SliceOfN(rapid.ByteRange(1, 255), 1, 3).Draw(t, "address"))
	})
	rapid.Check(t, func(t *rapid.T) {
		pool := rapid.SliceOfN(address, 1, 6).Draw(t, "addresses")
		sometimes := func() bool { return rapid.IntRange(0, 3).Draw(t, "escape") == 0 }
		var text strings.Builder
		addresses, names := make(map[string][]string), make(map[string]string)
		for range rapid.IntRange(0, 8).Draw(t, "lines") {
			host := rapid.SampledFrom(pool).Draw(t, "host")
			text.WriteString(rapid.SampledFrom([]string{"", " ", "\n", "# none\n"}).Draw(t, "before"))
			text.WriteString(escape(host, sometimes))
			for i, n := range rapid.SliceOfN(name, 1, 3).Draw(t, "names") {
				text.WriteString(blanks.Draw(t, "blank") + n)
				if _, ok := names[host]; !ok && i == 0 {
					names[host] = n
				}
				if key := strings.ToLower(n); !slices.Contains(addresses[key], host) {
					addresses[key] = append(addresses[key], host)
				}
			}
			text.WriteString(comment.Draw(t, "comment") + "\n")
		}
		h, err := ParseHosts(strings.NewReader(text.String()))
		if err != nil {
			t.Fatalf("%v in:\n%q", err, text.String())
		}
		if !maps.EqualFunc(h.addresses, addresses, slices.Equal) || !maps.Equal(h.names, names) {
			t.Fatalf("read %v and %v, want %v and %v, from:\n%q", h.addresses, h.names, addresses, names, text.String())
		}
	})
}

// An accepted table is consistent, and equal after it is written and parsed.
func FuzzParseHosts(f *testing.F) {
	f.Fuzz(func(t *testing.T, text []byte) {
		h, err := ParseHosts(bytes.NewReader(text))
		if err != nil {
			if h != nil || !errors.Is(err, ErrNameService) {
				t.Fatalf("table %v, error %v", h, err)
			}
			return
		}
		// Names of one address in an order that starts with the address's own.
		var again strings.Builder
		for host, name := range h.names {
			if host == "" || strings.ContainsRune(host, 0) || !slices.Contains(h.addresses[strings.ToLower(name)], host) {
				t.Fatalf("name %q of address %q does not lead back", name, host)
			}
		}
		for name, hosts := range h.addresses {
			if err := checkHostName(name); err != nil || name != strings.ToLower(name) || len(hosts) == 0 {
				t.Fatalf("accepted name %q: %v", name, err)
			}
			for _, host := range hosts {
				if h.names[host] == "" {
					t.Fatalf("address %q of %q has no name", host, name)
				}
				fmt.Fprintf(&again, "%s %s\n", escape(host, func() bool { return false }), name)
			}
		}
		if again.Len() > maxHostsBytes {
			return // escapes made it longer
		}
		if h2, err := ParseHosts(strings.NewReader(again.String())); err == nil {
			if !maps.EqualFunc(h.addresses, h2.addresses, slices.Equal) {
				t.Fatalf("%v became %v", h.addresses, h2.addresses)
			}
		} else if !strings.Contains(err.Error(), "limit") {
			t.Fatalf("written again it fails: %v", err)
		}
	})
}
