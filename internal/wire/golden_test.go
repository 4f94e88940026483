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

var update = flag.Bool("update", false, "rewrite golden files and fuzz seeds")

// dump prints bytes as golden files have them: 16 a line, behind their offset.
func dump(b []byte) string {
	var s strings.Builder
	for i := 0; i < len(b); i += 16 {
		line := b[i:min(i+16, len(b))]
		fmt.Fprintf(&s, "%04x  % x\n", i, line)
	}
	return s.String()
}

// undump reads what dump wrote.
func undump(t *testing.T, s string) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(s) {
		_, digits, _ := strings.Cut(line, "  ")
		b, err := hex.DecodeString(strings.NewReplacer(" ", "", "\n", "").Replace(digits))
		if err != nil {
			t.Fatalf("golden line %q: %v", line, err)
		}
		out = append(out, b...)
	}
	return out
}

func TestGolden(t *testing.T) {
	names := map[string]bool{}
	for _, s := range samples() {
		names[s.name+".hex"] = true
		t.Run(s.name, func(t *testing.T) {
			path := filepath.Join("testdata", "golden", s.name+".hex")
			got := mustEncode(s.msg)
			if *update {
				writeFile(t, path, dump(got))
				seed := filepath.Join("testdata", "fuzz", "Fuzz"+typeName(s.msg), s.name)
				writeFile(t, seed, fmt.Sprintf("go test fuzz v1\n[]byte(%q)\n", got))
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want := undump(t, string(text))
			if !bytes.Equal(got, want) {
				t.Fatalf("encoded:\n%swant:\n%s", dump(got), text)
			}
			m := s.fresh()
			if err := m.Decode(want); err != nil {
				t.Fatalf("decode: %v", err)
			}
			if !reflect.DeepEqual(m, s.msg) {
				t.Fatalf("decoded\n%+v\nwant\n%+v", m, s.msg)
			}
		})
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

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Every message type has a sample, so a new one cannot be forgotten.
func TestEveryOpcodeHasASample(t *testing.T) {
	seen := map[Opcode]bool{OpTrim: true, OpPrefetch: true} // like OpWriteZeroes
	for _, s := range samples() {
		b := mustEncode(s.msg)
		op, err := PeekKind(b)
		if err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if op != RawOpcode(b) {
			t.Fatalf("%s: PeekKind says %v, RawOpcode %v", s.name, op, RawOpcode(b))
		}
		seen[op] = true
	}
	for op := range 256 {
		if o := Opcode(op); o.known() && !seen[o] {
			t.Errorf("no sample of %v", o)
		}
	}
}

// A message cut short at any byte, or with any bit flipped, is refused.
func TestDamagedMessagesAreRefused(t *testing.T) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) {
			b := mustEncode(s.msg)
			for n := range len(b) {
				if err := s.fresh().Decode(b[:n:n]); err == nil {
					t.Errorf("accepted %d of %d bytes", n, len(b))
				}
			}
			if err := s.fresh().Decode(append(b[:len(b):len(b)], 0)); err == nil {
				t.Error("accepted one byte too many")
			}
			end := len(b)
			switch m := s.msg.(type) {
			case *inlineCommand:
				end = int(m.HeaderLength)
			case *inlineReply:
				end = HeaderSize
			}
			for bit := range end * 8 {
				b[bit/8] ^= 1 << (bit % 8)
				if err := s.fresh().Decode(b); err == nil {
					t.Errorf("accepted byte %d with bit %d flipped", bit/8, bit%8)
				}
				b[bit/8] ^= 1 << (bit % 8)
			}
		})
	}
}
