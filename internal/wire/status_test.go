package wire

import (
	"strings"
	"syscall"
	"testing"
)

// The numbers are the protocol: they never change.
func TestStatusNumbersAndErrnos(t *testing.T) {
	for _, c := range []struct {
		number uint16
		status Status
		errno  syscall.Errno
		both   bool // StatusOf(errno) is status again
	}{
		{0, StatusOK, 0, true},
		{1, StatusPermission, syscall.EPERM, true},
		{2, StatusIO, syscall.EIO, true},
		{3, StatusNoMemory, syscall.ENOMEM, true},
		{4, StatusInvalid, syscall.EINVAL, true},
		{5, StatusNoSpace, syscall.ENOSPC, true},
		{6, StatusOverflow, syscall.EOVERFLOW, true},
		{7, StatusNotSupported, syscall.ENOTSUP, true},
		{8, StatusShutdown, syscall.ESHUTDOWN, true},
		{16, StatusRetry, syscall.EAGAIN, false},
		{17, StatusStale, syscall.ESTALE, false},
		{18, StatusProtocol, syscall.EPROTO, false},
		{19, StatusBusy, syscall.EBUSY, true},
		{20, StatusNotFound, syscall.ENOENT, true},
		{21, StatusVersion, syscall.EPROTONOSUPPORT, false},
		{22, StatusAuth, syscall.EACCES, false},
		{23, StatusLimit, syscall.E2BIG, false},
		{24, StatusDigest, syscall.EBADMSG, false},
		{25, StatusAborted, syscall.ECANCELED, false},
		{26, StatusFenced, syscall.EREMCHG, false},
		{27, StatusContinue, syscall.EINPROGRESS, false},
	} {
		if uint16(c.status) != c.number || c.status.Errno() != c.errno {
			t.Errorf("%v is %d with errno %v, want %d with %v", c.status,
				uint16(c.status), c.status.Errno(), c.number, c.errno)
		}
		if got := StatusOf(c.errno); (got == c.status) != c.both {
			t.Errorf("StatusOf(%v) = %v", c.errno, got)
		}
		if strings.HasPrefix(c.status.String(), "status-") {
			t.Errorf("status %d has no name", c.number)
		}
	}
	if statusEnd != 28 {
		t.Errorf("the table ends at %d", statusEnd)
	}
}

func TestStatusOfOtherErrnos(t *testing.T) {
	for errno, want := range map[syscall.Errno]Status{
		syscall.EROFS: StatusPermission, syscall.EACCES: StatusPermission,
		syscall.EDQUOT: StatusNoSpace, syscall.EFBIG: StatusNoSpace,
		syscall.ENOSYS: StatusNotSupported, syscall.ENODEV: StatusIO,
		syscall.EAGAIN: StatusIO, syscall.ESTALE: StatusIO, 4095: StatusIO,
	} {
		if got := StatusOf(errno); got != want {
			t.Errorf("StatusOf(%v) = %v, want %v", errno, got, want)
		}
	}
}

func TestUnknownNumbersHaveNames(t *testing.T) {
	for _, s := range []Status{9, 15, statusEnd, 65535} {
		if s.known() || s.Errno() != syscall.EIO || !strings.HasPrefix(s.String(), "status-") {
			t.Errorf("status %d: known %v, %v, %q", uint16(s), s.known(), s.Errno(), s)
		}
	}
	if got := Opcode(0x3e).String(); got != "opcode-0x3e" {
		t.Errorf("unknown opcode is called %q", got)
	}
	if got := OpWriteZeroes.String(); got != "write-zeroes" {
		t.Errorf("OpWriteZeroes is called %q", got)
	}
	for role, want := range map[Role]string{0: "role-0", RoleControl: "control", 3: "role-3", RoleDiscover: "discover", roleEnd: "role-5"} {
		if got := role.String(); got != want {
			t.Errorf("role %d is called %q, want %q", uint8(role), got, want)
		}
	}
	if got := reasonEnd.String(); got != "reason-16" {
		t.Errorf("unknown reason is called %q", got)
	}
	for r := range reasonEnd {
		if r.String() == "" {
			t.Errorf("reason %d has no name", r)
		}
	}
}

// The ranges of opcodes decide the layout; they never change.
func TestOpcodeNumbers(t *testing.T) {
	for op, want := range map[Opcode]uint8{
		OpRead: 1, OpWrite: 2, OpFlush: 3, OpTrim: 4, OpWriteZeroes: 5,
		OpPrefetch: 6, OpCompareWrite: 7, OpBlockStatus: 8, OpAbort: 0x40, OpFence: 0x41,
		OpKeepAlive: 0x42, OpEventAck: 0x43, OpOpen: 0x44, OpClose: 0x45,
		OpDiscover: 0x46, OpLogout: 0x48, OpLogin: 0x50,
		OpReply: 0x80, OpAbortResponse: 0xc0, OpFenceResponse: 0xc1,
		OpKeepAliveAck: 0xc2, OpOpenResponse: 0xc4, OpCloseResponse: 0xc5,
		OpDiscoverResponse: 0xc6, OpLogoutResponse: 0xc8,
		OpLoginResponse: 0xd0, OpEvent: 0xe0,
		OpRefused: 0xff,
	} {
		if uint8(op) != want {
			t.Errorf("%v is %#x, want %#x", op, uint8(op), want)
		}
	}
	for op := range 256 {
		o := Opcode(op)
		command, control := op >= 1 && op < 0x40, op&0x40 != 0
		if o.IsCommand() != command || o.IsControl() != control {
			t.Errorf("%#x: command %v, control %v", op, o.IsCommand(), o.IsControl())
		}
		if o.known() && !command && !control && o != OpReply {
			t.Errorf("%v is in no range", o)
		}
	}
}
