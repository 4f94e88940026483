package wire

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite golden files and fuzz seeds, not captures")

// dump formats bytes for golden files: 16 a line, after their offset.
func dump(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); i += 16 {
		fmt.Fprintf(&s, "%04x  % x\n", i, b[i:min(i+16, len(b))])
	}
	return s.String()
}

// undump parses the output of dump.
func undump(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for line := range strings.Lines(string(text)) {
		_, digits, _ := strings.Cut(strings.TrimSpace(line), "  ")
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%s: line %q: %v", path, line, err)
		}
		out = append(out, b...)
	}
	return out
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// golden compares got with a golden file, which it returns.
func golden(t *testing.T, name string, got []byte, seeds ...string) []byte {
	t.Helper()
	path := filepath.Join("testdata", "golden", name+".hex")
	if *update {
		writeFile(t, path, dump(got))
		for _, target := range seeds {
			writeFile(t, filepath.Join("testdata", "fuzz", target, name),
				fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", got))
		}
	}
	want := undump(t, path)
	if !bytes.Equal(got, want) {
		t.Fatalf("encoded:\n%swant:\n%s", dump(got), dump(want))
	}
	return want
}

// Every opcode has a golden packet.
func TestGoldenPackets(t *testing.T) {
	for _, op := range known() {
		t.Run(slug(op), func(t *testing.T) {
			p := samplePacket(op)
			b := golden(t, slug(op), encodePacket(p), "FuzzPacket")
			var got Packet
			if r := got.Decode(b, DefaultPKey); r != Accepted {
				t.Fatal(r)
			}
			if !reflect.DeepEqual(&got, p) {
				t.Fatalf("decoded\n%+v\nwant\n%+v", got, *p)
			}
			if !checksum(sampleSrc, sampleDst).Verify(b, Identification{}) {
				t.Error("wrong ICRC")
			}
		})
	}
}

// Every message of the connection manager has a golden MAD.
func TestGoldenMessages(t *testing.T) {
	for _, s := range sampleMessages() {
		t.Run(s.name, func(t *testing.T) {
			b := golden(t, s.name, encodeMessage(s.msg), "FuzzMessage")
			got := fresh(s.msg)
			if r := got.Decode(b); r != Accepted {
				t.Fatal(r)
			}
			if !reflect.DeepEqual(got, s.msg) {
				t.Fatalf("decoded\n%+v\nwant\n%+v", got, s.msg)
			}
		})
	}
}

func TestGoldenFilesAreSamples(t *testing.T) {
	names := map[string]bool{}
	for _, op := range known() {
		names[slug(op)+".hex"] = true
	}
	for _, s := range sampleMessages() {
		names[s.name+".hex"] = true
	}
	files, err := os.ReadDir(filepath.Join("testdata", "golden"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !names[f.Name()] {
			t.Errorf("golden file %s belongs to no sample", f.Name())
		}
	}
}

// Encoding overwrites all previous content of the buffer.
func TestEncodeLeavesNothingStale(t *testing.T) {
	stale := bytes.Repeat([]byte{0xa5}, MADSize)
	for _, op := range known() {
		p := samplePacket(op)
		want := encodePacket(p)
		dirty := bytes.Clone(stale)
		if n := p.Put(dirty, len(p.Payload)); !bytes.Equal(dirty[:n], want[:n]) {
			t.Errorf("%v: stale bytes:\n%swant:\n%s", op, dump(dirty[:n]), dump(want[:n]))
		}
	}
	for _, s := range sampleMessages() {
		m := fresh(s.msg)
		dirty := bytes.Clone(stale)
		m.Encode(dirty)
		if want := encodeMessage(m); !bytes.Equal(dirty, want) {
			t.Errorf("%s: stale bytes:\n%s", s.name, dump(dirty))
		}
	}
}

// A packet with any bit flipped is refused or has a wrong ICRC, except for the
// bits that the ICRC does not cover.
func TestDamagedPacketsAreFound(t *testing.T) {
	c := checksum(sampleSrc, sampleDst)
	for _, op := range known() {
		b := encodePacket(samplePacket(op))
		for bit := range len(b) * 8 {
			if bit/8 == bthAtCongestion {
				continue
			}
			b[bit/8] ^= 1 << (bit % 8)
			if c.Verify(b, Identification{}) {
				t.Errorf("%v: bit %d of byte %d is not covered", op, bit%8, bit/8)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}
