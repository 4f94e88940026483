package regcache

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSelectedSetting(t *testing.T) {
	for text, want := range map[string]string{
		"always [madvise] never\n":                       "madvise",
		"[always] madvise never\n":                       "always",
		"always within_size advise never deny [force]":   "force",
		"always within_size advise [never] deny force\n": "never",
		"":                      "",
		"never\n":               "never",
		"always [madvise never": "always [madvise never",
	} {
		if got := selected(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := setting("no_such_setting"); got != "/sys/kernel/mm/transparent_hugepage/no_such_setting is absent" {
		t.Error(got)
	}
}

// smaps of a process with three mappings.
const smaps = `00400000-00c00000 r-xp 00000000 fe:00 262193                             /usr/bin/viablk
Size:               8192 kB
Rss:                4096 kB
THPeligible:           0
VmFlags: rd ex mr mw me
c000000000-c000400000 rw-p 00000000 00:00 0                                  [anon: Go: heap]
Size:               4096 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac hg
7f0000000000-7f0000200000 rw-s 00000000 00:01 1033                           /memfd:viablk-arena (deleted)
Size:               2048 kB
THPeligible:           0
VmFlags: rd wr sh mr mw me ms hg nr
7f0000200000-7f0000400000 rw-p 00000000 00:00 0
THPeligible:    0
ProtectionKey:         0
VmFlags: rd wr mr mw me ac nh
`

func TestFindMapping(t *testing.T) {
	for addr, want := range map[uint64]mappingInfo{
		0x400000:       {},
		0xbfffff:       {},
		0xc000000000:   {eligible: true, advised: true},
		0xc0003fffff:   {eligible: true, advised: true},
		0x7f0000000000: {shared: true, advised: true},
		0x7f0000200000: {},
	} {
		if got, err := findMapping(strings.NewReader(smaps), addr); err != nil || got != want {
			t.Errorf("%#x: %+v, %v, want %+v", addr, got, err, want)
		}
	}
	for _, addr := range []uint64{0, 0xc00000, 0x7f0000400000} {
		if got, err := findMapping(strings.NewReader(smaps), addr); err == nil {
			t.Errorf("%#x: %+v", addr, got)
		}
	}
	if _, err := findMapping(strings.NewReader(strings.Repeat("x", 1<<20)), 0x400000); err == nil {
		t.Error("a line without an end has an answer")
	}
}

// The status agrees with the kernel for memory of either kind.
func TestHugePageStatus(t *testing.T) {
	if v := hugePageStatus(0, syscall.EINVAL); v != "no: the system refuses the advice: invalid argument" {
		t.Error(v)
	}
	if v := hugePageStatus(8, nil); !strings.HasPrefix(v, "unknown: ") {
		t.Error(v)
	}
	for _, kind := range []struct {
		name, setting string
		flags         int
		yes           []string // settings that have huge pages on advice
	}{
		{"private", "enabled", unix.MAP_PRIVATE, []string{"always", "madvise"}},
		{"shared", "shmem_enabled", unix.MAP_SHARED, []string{"always", "within_size", "advise", "force"}},
	} {
		mem, err := unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|kind.flags)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/" + kind.setting)
		if err != nil {
			t.Fatal(err)
		}
		want := "no: /sys/kernel/mm/transparent_hugepage/" + kind.setting + " is " + selected(string(text))
		for _, s := range kind.yes {
			if s == selected(string(text)) {
				want = "yes"
			}
		}
		if got := hugePageStatus(addressOf(mem), adviseHuge(mem)); got != want {
			t.Errorf("%s memory: %q, want %q", kind.name, got, want)
		}
		if err := unix.Munmap(mem); err != nil {
			t.Error(err)
		}
	}
}

// The status describes an arena in which a huge page fits.
func TestHugePagesOfArenas(t *testing.T) {
	r := newRig(t, 1, Config{})
	if s := r.Stats().HugePages; s != "no arena yet in which one fits" {
		t.Errorf("an arena of 1 MiB: %q", s)
	}
	a, err := r.NewArena(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if s := r.Stats().HugePages; s != "yes" && !strings.HasPrefix(s, "no: ") {
		t.Errorf("an arena of 4 MiB: %q", s)
	}
	if !advised(t, addressOf(a.Bytes())) {
		t.Error("the arena is not advised to have huge pages")
	}
}

// Pools ask for huge pages only if they are large enough.
func TestHugePagesOfPools(t *testing.T) {
	for size, want := range map[int]bool{1 << 20: false, hugePool / 2: false, hugePool: true, 2 * hugePool: true} {
		p, _ := newPool(t, size)
		if got := advised(t, p.addr); got != want {
			t.Errorf("pool of %d bytes: advised %v", size, got)
		}
	}
}

// advised reports whether the mapping at an address has MADV_HUGEPAGE.
func advised(t *testing.T, addr uint64) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	m, err := findMapping(bytes.NewReader(text), addr)
	if err != nil {
		t.Fatal(err)
	}
	return m.advised
}
