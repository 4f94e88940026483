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

// hugePages records whether the arenas have huge pages. One page per granule
// means one entry in the translation tables of the NIC and the processor, and
// pinning in one step.
type hugePages struct {
	mu sync.Mutex
	// status is "" until the first arena in which a huge page fits.
	// +checklocks:mu
	status string
}

// hugePage is the size of a huge page, in bytes.
const hugePage = 2 << 20

// adviseHuge asks the system for huge pages.
func adviseHuge(mem []byte) error { return unix.Madvise(mem, unix.MADV_HUGEPAGE) }

// advise asks the system for huge pages. The status describes the first arena
// in which a huge page fits at any offset: all arenas of a NIC are of one kind.
func (h *hugePages) advise(mem []byte) {
	err := adviseHuge(mem)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status == "" && len(mem) >= 2*hugePage {
		h.status = hugePageStatus(addressOf(mem), err)
	}
}

// String returns "yes", or why there are no huge pages.
func (h *hugePages) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status == "" {
		return "no arena yet in which one fits"
	}
	return h.status
}

// hugePageStatus returns the effect of the advice on the mapping at addr.
func hugePageStatus(addr uint64, advice error) string {
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

// mappingInfo is the part of a mapping's smaps entry that the status needs.
type mappingInfo struct {
	shared   bool // of a file or memfd
	eligible bool // for huge pages, by the system's settings
	advised  bool // MADV_HUGEPAGE is set
}

// findMapping reads smaps, as proc(5) describes it, for the mapping at addr.
func findMapping(smaps io.Reader, addr uint64) (m mappingInfo, err error) {
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

// setting describes a setting of the system.
func setting(name string) string {
	path := "/sys/kernel/mm/transparent_hugepage/" + name
	b, err := os.ReadFile(path)
	if err != nil {
		return path + " is absent"
	}
	return path + " is " + selected(string(b))
}

// selected returns the active choice, which the kernel puts in brackets.
func selected(setting string) string {
	if _, rest, ok := strings.Cut(setting, "["); ok {
		if word, _, ok := strings.Cut(rest, "]"); ok {
			return word
		}
	}
	return strings.TrimSpace(setting)
}
