package nbdclient

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/viablk/viablk/internal/block"
)

var update = flag.Bool("update", false, "write the golden file anew")

// TestGoldenRequests compares the bytes of every request with a file.
func TestGoldenRequests(t *testing.T) {
	const golden = "testdata/requests.txt"
	var b bytes.Buffer
	for _, extended := range []bool{false, true} {
		for _, r := range []block.Request{
			{Op: block.Read, Offset: 0x1122334455667000, Length: 0x8000},
			{Op: block.Read, Flags: block.FUA, Offset: 512, Length: 512},
			{Op: block.Write, Offset: 4096, Length: 4096},
			{Op: block.Write, Flags: block.FUA, Offset: 4096, Length: 4096},
			{Op: block.Flush},
			{Op: block.Trim, Offset: 1 << 40, Length: 1 << 28},
			{Op: block.Trim, Flags: block.FUA, Offset: 1 << 40, Length: 1 << 28},
			{Op: block.WriteZeroes, Offset: 512, Length: 1024},
			{Op: block.WriteZeroes, Flags: block.FUA | block.NoHole | block.FastZero, Offset: 512, Length: 1024},
			{Op: block.Status, Offset: 4096, Length: 1 << 30},
			{Op: block.Prefetch, Offset: 4096, Length: 1 << 20},
		} {
			s := slot{r: &r, end: r.Length, cookie: 0x0102030405060000}
			fmt.Fprintf(&b, "%v flags %b extended %v\n%s", r.Op, r.Flags, extended, hex.Dump(s.appendRequest(nil, extended)))
		}
		fmt.Fprintf(&b, "disconnect extended %v\n%s", extended, hex.Dump(appendHeader(nil, extended, 0, cmdDisconnect, 0, 0, 0)))
	}
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("requests differ from %s; -update writes it anew. Now:\n%s", golden, b.Bytes())
	}
}
