package block

import "syscall"

// maximumRange bounds the length of requests without payload, so that offset
// plus length cannot overflow.
const maximumRange = 1 << 62

// Check validates a request that came from outside against the device: its
// operation, flags, alignment and range. It returns 0, or the errno that the
// NBD protocol prescribes. It is called once, where the request enters the
// process.
func (i *Info) Check(op Op, flags Flags, offset, length uint64) syscall.Errno {
	if e := i.checkOp(op, flags); e != 0 {
		return e
	}
	if op == Flush {
		if offset != 0 || length != 0 {
			return syscall.EINVAL
		}
		return 0
	}
	if e := i.checkRange(op, offset, length); e != 0 {
		return e
	}
	if (op == Read || op == Write) && length > uint64(i.MaximumPayload) {
		return syscall.EINVAL
	}
	return 0
}

// checkRange validates a range, of whatever length.
func (i *Info) checkRange(op Op, offset, length uint64) syscall.Errno {
	if length == 0 {
		return syscall.EINVAL
	}
	beyond := offset > uint64(i.Size) || length > uint64(i.Size)-offset
	switch {
	case beyond && (op == Write || op == WriteZeroes):
		return syscall.ENOSPC
	case beyond, length > maximumRange:
		return syscall.EINVAL
	}
	if block := uint64(i.MinimumBlock); block > 1 && (offset|length)&(block-1) != 0 {
		return syscall.EINVAL
	}
	return 0
}

// checkOp validates what does not depend on the range.
func (i *Info) checkOp(op Op, flags Flags) syscall.Errno {
	var need Features
	var allowed Flags
	switch op {
	case Read:
		allowed = FUA
	case Write:
		allowed = FUA
	case Flush:
		need, allowed = CanFlush, FUA
	case Trim:
		need, allowed = CanTrim, FUA
	case WriteZeroes:
		need, allowed = CanWriteZeroes, FUA|NoHole|FastZero
	case Status:
		need, allowed = CanStatus, FUA
	case Prefetch:
		need, allowed = CanPrefetch, FUA
	default:
		return syscall.EINVAL
	}
	writes := op == Write || op == Trim || op == WriteZeroes
	switch {
	case writes && i.Features&ReadOnly != 0:
		return syscall.EPERM
	case i.Features&need != need:
		return syscall.EINVAL
	case flags&^allowed != 0:
		return syscall.EINVAL
	case flags&FUA != 0 && i.Features&CanFUA == 0:
		return syscall.EINVAL
	case flags&FastZero != 0 && i.Features&CanFastZero == 0:
		return syscall.EINVAL
	}
	return 0
}
