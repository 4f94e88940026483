package wire

import (
	"strconv"
	"syscall"
)

// Status is the result of a command or control request on the wire. The table
// is fixed for a protocol version; errno values of no system leak into it.
type Status uint16

// The results of I/O. Each stands for one errno, both ways.
const (
	StatusOK           Status = iota // done
	StatusPermission                 // EPERM: read-only, or no right
	StatusIO                         // EIO: everything without a better word
	StatusNoMemory                   // ENOMEM
	StatusInvalid                    // EINVAL: bad range, alignment or flags
	StatusNoSpace                    // ENOSPC
	StatusOverflow                   // EOVERFLOW
	StatusNotSupported               // ENOTSUP: unknown opcode, or not this fast
	StatusShutdown                   // ESHUTDOWN: the export is going away
)

// The conditions of a session. The peer acts on them; an application sees one
// only if the peer gives up.
const (
	StatusRetry    Status = 16 + iota // EAGAIN: not started, retransmit later
	StatusStale                       // ESTALE: older epoch or generation
	StatusProtocol                    // EPROTO: a rule was broken
	StatusBusy                        // EBUSY: in use, or a fence still waits
	StatusNotFound                    // ENOENT: no such export, or no right to know
	StatusVersion                     // EPROTONOSUPPORT: no common version
	StatusAuth                        // EACCES: proof missing or wrong
	StatusLimit                       // E2BIG: beyond what was negotiated
	StatusDigest                      // EBADMSG: data checksum wrong
	StatusAborted                     // ECANCELED: dropped by Abort
	StatusFenced                      // EREMCHG: not executed, the path is fenced
	StatusContinue                    // EINPROGRESS: login demands a proof
	statusEnd
)

// statuses is the one table between wire, errno and words.
var statuses = [statusEnd]struct {
	name  string
	errno syscall.Errno
}{
	StatusOK:           {"ok", 0},
	StatusPermission:   {"permission", syscall.EPERM},
	StatusIO:           {"io", syscall.EIO},
	StatusNoMemory:     {"no-memory", syscall.ENOMEM},
	StatusInvalid:      {"invalid", syscall.EINVAL},
	StatusNoSpace:      {"no-space", syscall.ENOSPC},
	StatusOverflow:     {"overflow", syscall.EOVERFLOW},
	StatusNotSupported: {"not-supported", syscall.ENOTSUP},
	StatusShutdown:     {"shutdown", syscall.ESHUTDOWN},
	StatusRetry:        {"retry", syscall.EAGAIN},
	StatusStale:        {"stale", syscall.ESTALE},
	StatusProtocol:     {"protocol", syscall.EPROTO},
	StatusBusy:         {"busy", syscall.EBUSY},
	StatusNotFound:     {"not-found", syscall.ENOENT},
	StatusVersion:      {"version", syscall.EPROTONOSUPPORT},
	StatusAuth:         {"auth", syscall.EACCES},
	StatusLimit:        {"limit", syscall.E2BIG},
	StatusDigest:       {"digest", syscall.EBADMSG},
	StatusAborted:      {"aborted", syscall.ECANCELED},
	StatusFenced:       {"fenced", syscall.EREMCHG},
	StatusContinue:     {"continue", syscall.EINPROGRESS},
}

// Errno returns the errno that s stands for: 0 for StatusOK, EIO for a status
// outside the table.
func (s Status) Errno() syscall.Errno {
	if !s.known() {
		return syscall.EIO
	}
	return statuses[s].errno
}

// String returns the name, or the number of a status outside the table.
func (s Status) String() string {
	if !s.known() {
		return "status-" + strconv.FormatUint(uint64(s), 10)
	}
	return statuses[s].name
}

// known reports whether s is in the table.
func (s Status) known() bool {
	return s < statusEnd && statuses[s].name != ""
}

// StatusOf returns the status for the result of an I/O or of opening a disk. An
// errno without a row in the table becomes StatusIO. So do the errnos of the
// session conditions: a backend that fails with EAGAIN or ESTALE has failed, it
// does not request a retry or a new path.
func StatusOf(e syscall.Errno) Status {
	switch e {
	case 0:
		return StatusOK
	case syscall.EPERM, syscall.EACCES, syscall.EROFS:
		return StatusPermission
	case syscall.ENOMEM:
		return StatusNoMemory
	case syscall.EINVAL:
		return StatusInvalid
	case syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG:
		return StatusNoSpace
	case syscall.EOVERFLOW:
		return StatusOverflow
	case syscall.ENOTSUP, syscall.ENOSYS:
		return StatusNotSupported
	case syscall.ESHUTDOWN:
		return StatusShutdown
	case syscall.EBUSY:
		return StatusBusy
	case syscall.ENOENT:
		return StatusNotFound
	default:
		return StatusIO
	}
}
