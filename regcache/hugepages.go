package regcache

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// hugePages is what became of the advice to use huge pages for the arenas. One
// page for a granule means one entry in tables of translations, the NIC's as the
// processor's, and pinning in one step.
type hugePages struct {
	mu      sync.Mutex
	verdict string // "" until the first arena that can have some
}

// hugePage is the size of a huge page, in bytes.
const hugePage = 2 << 20

// adviseHuge asks the system for huge pages.
func adviseHuge(mem []byte) error { return unix.Madvise(mem, unix.MADV_HUGEPAGE) }

// advise asks the system for huge pages. The verdict is about the first arena in
// which one fits wherever it begins: all arenas of a NIC are of one kind.
func (h *hugePages) advise(mem []byte) {
	err := adviseHuge(mem)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.verdict == "" && len(mem) >= 2*hugePage {
		h.verdict = verdict(addressOf(mem), err)
	}
}

// String returns "yes", or why there are no huge pages.
func (h *hugePages) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.verdict == "" {
		return "no arena yet in which one fits"
	}
	return h.verdict
}

// verdict says what the system makes of the advice for the mapping at addr.
func verdict(addr uint64, advice error) string {
	if advice != nil {
		return fmt.Sprintf("no: the system refuses the advice: %v", advice)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return fmt.Sprintf("unknown: %v", err)
	}
	defer f.Close()
	m, err := findMapping(f, addr)
	switch {
	case err != nil:
		return fmt.Sprintf("unknown: %v", err)
	case m.eligible:
		return "yes"
	case m.shared:
		return "no: " + setting("shmem_enabled")
	default:
		return "no: " + setting("enabled")
	}
}

// described is what smaps says of a mapping.
type described struct {
	shared   bool // of a file or memfd
	eligible bool // for huge pages, as the system is set up
	advised  bool // to have them
}

// findMapping reads smaps, as proc(5) describes it, for the mapping at addr.
func findMapping(smaps io.Reader, addr uint64) (m described, err error) {
	found, inside := false, false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		var from, to uint64
		var rights string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &rights); n == 3 {
			if inside = addr >= from && addr < to; inside {
				found, m.shared = true, strings.HasSuffix(rights, "s")
			}
			continue
		}
		if !inside {
			continue
		}
		switch key, value, _ := strings.Cut(line, ":"); key {
		case "THPeligible":
			m.eligible = strings.TrimSpace(value) == "1"
		case "VmFlags":
			m.advised = strings.Contains(value+" ", " hg ")
		}
	}
	if err := lines.Err(); err != nil {
		return m, err
	}
	if !found {
		return m, fmt.Errorf("smaps has nothing at %#x", addr)
	}
	return m, nil
}

// setting says how the system is set up.
func setting(name string) string {
	path := "/sys/kernel/mm/transparent_hugepage/" + name
	b, err := os.ReadFile(path)
	if err != nil {
		return path + " is absent"
	}
	return path + " is " + chosen(string(b))
}

// chosen returns the choice that is in force, which the kernel puts in brackets.
func chosen(setting string) string {
	if _, rest, ok := strings.Cut(setting, "["); ok {
		if word, _, ok := strings.Cut(rest, "]"); ok {
			return word
		}
	}
	return strings.TrimSpace(setting)
}
