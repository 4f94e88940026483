package backend

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A disk that is larger than the memory of the machine gets a warning, and no
// other one does.
func TestWarningOfLargeMemoryDisk(t *testing.T) {
	memory := machineMemory()
	if memory < 1<<20 {
		t.Fatalf("the machine has %d bytes of memory", memory)
	}
	for size, warned := range map[int64]bool{memory: false, memory + 512: true, 1 << 20: false} {
		var out bytes.Buffer
		warnOfSize(size, memory, slog.New(slog.NewTextHandler(&out, nil)))
		if strings.Contains(out.String(), "event=memory_short") != warned {
			t.Errorf("a disk of %d in %d bytes: %q", size, memory, &out)
		}
	}
	warnOfSize(memory+512, memory, nil)
}
