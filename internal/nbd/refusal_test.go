package nbd

import (
	"bytes"
	"fmt"
	"math"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
)

// Values of refusals.
const (
	size   = 1 << 20 // bytes of the exports
	eperm  = syscall.EPERM
	einval = syscall.EINVAL
	enospc = syscall.ENOSPC
)

// refusals are the requests that a server must refuse. A row's number is that
// of the statement in nbdtest, or of its kind.
var refusals = []struct {
	name    string
	export  string
	flags   uint16
	command uint16
	offset  uint64
	length  uint32
	errno   syscall.Errno
}{
	{"T-01 READ beyond the end", "disk", 0, cmdRead, size - 511, 512, einval},
	{"T-01 READ at the end", "disk", 0, cmdRead, size, 1, einval},
	{"T-01 TRIM beyond the end", "disk", 0, cmdTrim, size - 1, 2, einval},
	{"T-01 TRIM of 4 GiB", "disk", 0, cmdTrim, 0, math.MaxUint32, einval},
	{"T-01 WRITE beyond the end", "disk", 0, cmdWrite, size - 511, 512, enospc},
	{"T-01 WRITE at the end", "disk", 0, cmdWrite, size, 1, enospc},
	{"T-01 WRITE_ZEROES beyond the end", "disk", 0, cmdWriteZeroes, size - 1, 2, enospc},
	{"T-02 READ at 2^63", "disk", 0, cmdRead, 1 << 63, 512, einval},
	{"T-02 READ that wraps", "disk", 0, cmdRead, 1<<64 - 256, 512, einval},
	{"T-02 WRITE at 2^63", "disk", 0, cmdWrite, 1 << 63, 512, enospc},
	{"T-02 WRITE that wraps", "disk", 0, cmdWrite, 1<<64 - 256, 512, enospc},
	{"T-02 WRITE_ZEROES that wraps", "disk", 0, cmdWriteZeroes, 1<<64 - 1, 1, enospc},
	{"T-02 TRIM that wraps", "disk", 0, cmdTrim, 1<<64 - 256, 512, einval},
	{"T-05 unknown command", "disk", 0, 12345, 0, 0, einval},
	{"T-05 unknown command with a length", "disk", 0, 8, 0, 4096, einval},
	{"T-01 CACHE beyond the end", "disk", 0, cmdCache, size - 511, 512, einval},
	{"T-02 CACHE that wraps", "disk", 0, cmdCache, 1<<64 - 256, 512, einval},
	{"T-05 BLOCK_STATUS without context", "plain", 0, cmdBlockStatus, 0, 512, einval},
	{"T-06 NO_HOLE on CACHE", "disk", cmdFlagNoHole, cmdCache, 0, 512, einval},
	{"T-06 REQ_ONE on CACHE", "disk", cmdFlagReqOne, cmdCache, 0, 512, einval},
	{"T-06 unknown flag on READ", "disk", 0x8000, cmdRead, 0, 512, einval},
	{"T-06 NO_HOLE on READ", "disk", cmdFlagNoHole, cmdRead, 0, 512, einval},
	{"T-06 unknown flag on WRITE", "disk", 0x4000, cmdWrite, 0, 512, einval},
	{"T-06 DF on WRITE", "disk", cmdFlagDF, cmdWrite, 0, 512, einval},
	{"T-06 REQ_ONE on WRITE", "disk", cmdFlagReqOne, cmdWrite, 0, 512, einval},
	{"T-06 FAST_ZERO on TRIM", "disk", cmdFlagFastZero, cmdTrim, 0, 512, einval},
	{"T-06 NO_HOLE on FLUSH", "disk", cmdFlagNoHole, cmdFlush, 0, 0, einval},
	{"T-06 FAST_ZERO that is not advertised", "slow", cmdFlagFastZero, cmdWriteZeroes, 0, 512, einval},
	{"T-07 FUA that is not advertised on WRITE", "plain", cmdFlagFUA, cmdWrite, 0, 512, einval},
	{"T-07 FUA that is not advertised on READ", "plain", cmdFlagFUA, cmdRead, 0, 512, einval},
	{"T-09 FLUSH with offset", "disk", 0, cmdFlush, 512, 0, einval},
	{"T-09 FLUSH with length", "disk", 0, cmdFlush, 0, 512, einval},
	{"T-09 FLUSH that is not advertised", "plain", 0, cmdFlush, 0, 0, einval},
	{"T-10 WRITE to a read-only export", "readonly", 0, cmdWrite, 0, 512, eperm},
	{"T-10 TRIM of a read-only export", "readonly", 0, cmdTrim, 0, 512, eperm},
	{"T-10 WRITE_ZEROES to a read-only export", "readonly", 0, cmdWriteZeroes, 0, 512, eperm},
	{"T-11 READ of nothing", "disk", 0, cmdRead, 0, 0, einval},
	{"T-11 WRITE of nothing", "disk", 0, cmdWrite, 0, 0, einval},
	{"T-11 TRIM of nothing", "disk", 0, cmdTrim, 0, 0, einval},
	{"T-11 WRITE_ZEROES of nothing", "disk", 0, cmdWriteZeroes, 0, 0, einval},
	{"T-12 WRITE_ZEROES that is not advertised", "plain", 0, cmdWriteZeroes, 0, 512, einval},
	{"T-13 TRIM that is not advertised", "plain", 0, cmdTrim, 0, 512, einval},
	{"T-11 CACHE of nothing", "disk", 0, cmdCache, 0, 0, einval},
	{"T-14 CACHE that is not advertised", "plain", 0, cmdCache, 0, 512, einval},
	{"T-16 READ over the maximum", "disk", 0, cmdRead, 0, 512<<10 + 1, einval},
	{"T-16 READ of 4 GiB", "disk", 0, cmdRead, 0, math.MaxUint32, einval},
	{"T-16 WRITE over the maximum", "disk", 0, cmdWrite, 0, 512<<10 + 1, einval},
	{"T-16 WRITE of twice the maximum", "disk", 0, cmdWrite, 0, 1 << 20, einval},
	{"T-23 READ at an odd offset", "aligned", 0, cmdRead, 512, 4096, einval},
	{"T-23 WRITE of an odd length", "aligned", 0, cmdWrite, 4096, 512, einval},
	{"T-23 CACHE at an odd offset", "aligned", 0, cmdCache, 512, 4096, einval},
	{"T-23 WRITE_ZEROES at an odd offset", "aligned", 0, cmdWriteZeroes, 1, 4096, einval},
}

// TestRefusals goes through refusals. After each the connection goes on, and
// the disk is unchanged.
func TestRefusals(t *testing.T) {
	aligned, plain, slow := newMemory(size), newMemory(size), newMemory(size)
	aligned.info.MinimumBlock = 4096
	plain.info.Features = 0
	slow.info.Features &^= block.CanFastZero
	exports := []Export{
		{Name: "disk", Device: newMemory(size)},
		{Name: "aligned", Device: aligned},
		{Name: "plain", Device: plain},
		{Name: "slow", Device: slow},
		{Name: "readonly", Device: newMemory(size), ReadOnly: true},
	}
	f := serve(t, Limits{Payload: 512 << 10}, exports...)
	for i := range exports {
		e := &exports[i]
		m := e.Device.(*memory)
		before := m.fill(7)
		for _, d := range replyModes {
			p := f.connectExport(e.Name, d)
			for _, row := range refusals {
				if row.export != e.Name {
					continue
				}
				t.Run(fmt.Sprintf("%s,%v", row.name, d), func(t *testing.T) {
					p.t = t
					var payload []byte
					if row.command == cmdWrite {
						payload = make([]byte, row.length)
					}
					p.want(row.errno, row.flags, row.command, row.offset, row.length, payload)
					p.want(0, 0, cmdRead, 0, 4096)
				})
			}
			p.t = t
			p.disconnect()
		}
		if !bytes.Equal(m.snapshot(), before) {
			t.Errorf("export %q has changed", e.Name)
		}
	}
}
