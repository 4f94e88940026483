package nbd

import (
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/viablk/viablk/internal/block"
)

// wireErrno returns the errno that leaves the server for one that a device
// reports. The protocol allows eight values ("Error values"), of which the
// server never sends ESHUTDOWN: a client takes it for a failed request.
// Everything else is mapped to the one that tells a client the same.
func wireErrno(e syscall.Errno) syscall.Errno {
	switch e {
	case 0, syscall.EPERM, syscall.EIO, syscall.EINVAL, syscall.ENOSPC,
		syscall.ENOMEM, syscall.ENOTSUP:
		return e
	case syscall.EROFS, syscall.EACCES:
		return syscall.EPERM
	case syscall.EDQUOT, syscall.EFBIG:
		return syscall.ENOSPC
	default:
		return syscall.EIO
	}
}

// replyErrno is wireErrno for the answer to one operation. ENOTSUP is the
// answer to a fast zero alone: a device that reports it for anything else has
// an I/O error.
func replyErrno(r *block.Request) syscall.Errno {
	e := wireErrno(block.Errno(r.Err))
	if e == syscall.ENOTSUP && !(r.Op == block.WriteZeroes && r.Flags&block.FastZero != 0) {
		return syscall.EIO
	}
	return e
}

// clip shortens a text to what the protocol allows, at a character's boundary,
// and replaces what is not UTF-8.
func clip(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= maximumText {
		return text
	}
	n := maximumText
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
