package backend

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/uring"
	"github.com/viablk/viablk/target/identity"
	"golang.org/x/sys/unix"
)

// fileOptions are the options of `file:`.
type fileOptions struct {
	readOnly, direct, lock bool
	identity               bool
	create                 int64 // bytes of a file to make; 0 for none
	wait                   time.Duration
	workers                int
	io                     string   // engine: ioAuto, ioUring or ioThreads; "" is that
	state                  string   // folder of identities
	boot                   [16]byte // of the machine; zero asks the kernel
	log                    *slog.Logger
	cow                    *cow  // the file is an overlay; else nil
	held                   *Held // may be nil
}

// parseFile reads PATH[?OPTION=VALUE&…].
func parseFile(rest string) (Opener, error) {
	path, o, err := parseFileSpec("file", rest)
	if err != nil {
		return nil, err
	}
	return func(options Options) (block.Device, error) { return openFile(path, o.with(options), linux{}) }, nil
}

// parseFileSpec reads PATH[?OPTION=VALUE&…] of a scheme.
func parseFileSpec(scheme, rest string) (path string, o fileOptions, err error) {
	path, query, err := splitQuery(scheme, rest)
	if err != nil {
		return "", o, err
	}
	if path == "" {
		return "", o, fmt.Errorf("%w: %s: needs a path", ErrUsage, scheme)
	}
	if o, err = parseFileOptions(query); err != nil {
		return "", o, err
	}
	if query.values.Has("create") {
		if o.create, err = ParseSize(query.values.Get("create")); err != nil {
			return "", o, err
		}
		err = checkSize("create", o.create)
	}
	return path, o, err
}

// parseFileOptions returns the options of a query, except for create.
func parseFileOptions(q query) (o fileOptions, err error) {
	o = fileOptions{lock: true, identity: true}
	if o.readOnly, err = q.flag("readonly"); err != nil {
		return o, err
	}
	if o.direct, err = q.flag("direct"); err != nil {
		return o, err
	}
	if q.values.Has("lock") {
		if o.lock, err = q.flag("lock"); err != nil {
			return o, err
		}
	}
	if q.values.Has("identity") {
		if o.identity, err = q.flag("identity"); err != nil {
			return o, err
		}
	}
	o.io, err = parseEngine(q)
	return o, err
}

// with returns the options of a specification with those that hold for any.
func (o fileOptions) with(options Options) fileOptions {
	o.readOnly = o.readOnly || options.ReadOnly
	o.wait, o.workers = options.LockWait, options.Workers
	o.state, o.log, o.held = options.StateFolder, options.Log, options.Held
	return o
}

// openFile opens, locks and describes a backing file.
func openFile(path string, o fileOptions, k kernel) (block.Device, error) {
	f := &file{path: path, align: 1, kernel: k, fd: -1, cow: o.cow, full: fullWarning{log: o.log}}
	var err error
	if f.fd, f.device, err = claimOrOpen(path, o); err != nil {
		return nil, err
	}
	if err := f.chooseEngine(o.io, uring.Probe); err != nil {
		_ = unix.Close(f.fd)
		return nil, err
	}
	if err := f.prepare(o); err != nil {
		_ = unix.Close(f.fd)
		return nil, err
	}
	f.executor = block.NewExecutor(f, o.workers)
	f.executor.OnLost(func(cause error) { _ = f.latch.Fail(cause) })
	f.guard(block.NewRanges())
	if o.lock && !o.readOnly {
		f.held = o.held
		f.held.add(f.fd)
	}
	return f, nil
}

// claimOrOpen returns the descriptor of the process before, or opens the path.
func claimOrOpen(path string, o fileOptions) (fd int, device bool, err error) {
	if o.readOnly || !o.lock {
		return openPath(path, o)
	}
	if fd, device = o.held.claim(path); fd < 0 {
		return openPath(path, o)
	}
	flags := 0
	if o.direct {
		flags = unix.O_DIRECT
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags); err != nil {
		_ = unix.Close(fd)
		return -1, false, explainOpen(path, o, err)
	}
	return fd, device, nil
}

// openPath opens a regular file or a block device.
func openPath(path string, o fileOptions) (fd int, device bool, err error) {
	st, err := os.Stat(path)
	flags := unix.O_CLOEXEC
	switch {
	case errors.Is(err, fs.ErrNotExist) && o.create > 0 && !o.readOnly:
		flags |= unix.O_CREAT | unix.O_EXCL
	case errors.Is(err, fs.ErrNotExist):
		return -1, false, fmt.Errorf("backing file %q: %w: create it, or add ?create=SIZE", path, fs.ErrNotExist)
	case err != nil:
		return -1, false, fmt.Errorf("backing file: %w", err)
	case st.IsDir():
		return -1, false, fmt.Errorf("%w: backing file %q is a directory", ErrUsage, path)
	case st.Mode().IsRegular():
	case st.Mode()&(fs.ModeDevice|fs.ModeCharDevice) == fs.ModeDevice:
		device = true
	default:
		return -1, false, fmt.Errorf("%w: backing file %q is neither a regular file nor a block device", ErrUsage, path)
	}
	if o.readOnly {
		flags |= unix.O_RDONLY
	} else {
		flags |= unix.O_RDWR
		if device {
			flags |= unix.O_EXCL // refuses what is mounted
		}
	}
	if o.direct {
		flags |= unix.O_DIRECT
	}
	fd, err = openRetrying(path, flags)
	if err != nil {
		return -1, false, explainOpen(path, o, err)
	}
	if flags&unix.O_CREAT != 0 {
		if err := unix.Ftruncate(fd, o.create); err != nil {
			_ = unix.Close(fd)
			_ = unix.Unlink(path)
			return -1, false, fmt.Errorf("make backing file %q of %d bytes: %w", path, o.create, err)
		}
	}
	return fd, device, nil
}

// openRetrying is open(2) without interruptions.
func openRetrying(path string, flags int) (int, error) {
	for {
		fd, err := unix.Open(path, flags, 0o600)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// explainOpen says what can be done about an error of open.
func explainOpen(path string, o fileOptions, err error) error {
	switch {
	case err == unix.EBUSY:
		return fmt.Errorf("backing file %q is %w: it is mounted or another process has it open: unmount it, or open it with readonly=1", path, ErrLocked)
	case err == unix.EINVAL && o.direct:
		return fmt.Errorf("%w: backing file %q is on a file system without direct I/O: leave direct=1 out", ErrUsage, path)
	case err == unix.EROFS:
		return fmt.Errorf("backing file %q is on a read-only file system: add readonly=1: %w (%w)", path, err, fs.ErrPermission)
	case errors.Is(err, fs.ErrPermission) && !o.readOnly:
		return fmt.Errorf("open backing file %q for writing: %w: change its mode, or add readonly=1", path, err)
	}
	return fmt.Errorf("open backing file %q: %w", path, err)
}

// prepare locks the file and finds out which it is and what it can do.
func (f *file) prepare(o fileOptions) error {
	if o.lock {
		if err := lockFile(f.fd, f.path, o.readOnly, o.wait); err != nil {
			return err
		}
		f.locked = true
	}
	if !f.device && !o.readOnly {
		f.room = new(room)
	}
	size, least, err := f.measure()
	if err != nil {
		return fmt.Errorf("size of backing file %q: %w", f.path, err)
	}
	if f.cow != nil {
		if size, err = f.cow.load(f, size, o); err != nil {
			return err
		}
	}
	if err := checkSize(fmt.Sprintf("backing file %q", f.path), size); err != nil {
		return err
	}
	if o.direct {
		least, f.align = f.directAlignment(least)
	}
	if size%int64(least) != 0 {
		return fmt.Errorf("%w: backing file %q has %d bytes, and direct I/O needs a multiple of %d: grow it, or leave direct=1 out",
			ErrUsage, f.path, size, least)
	}
	// The probe of features may change the time of modification, which tells the
	// identity whether another program wrote.
	if err := f.identify(o); err != nil {
		return err
	}
	f.info = plainInfo(size, f.features(), o.readOnly)
	f.info.MinimumBlock = uint32(least)
	f.info.PreferredBlock = max(4096, uint32(least))
	if f.cow != nil && !o.readOnly {
		return f.cow.begin()
	}
	return nil
}

// measure returns the size and the smallest block of the file, in bytes.
func (f *file) measure() (size int64, least int, err error) {
	size, err = f.size()
	if err != nil || !f.device {
		return size, 1, err
	}
	least, err = unix.IoctlGetInt(f.fd, unix.BLKSSZGET)
	if err != nil {
		return 0, 0, err
	}
	return size, least, nil
}

// directAlignment returns what direct I/O wants of offsets and of memory. A
// kernel that does not tell gets what every disk can do.
func (f *file) directAlignment(least int) (offset, memory int) {
	const safe = 4096
	var st unix.Statx_t
	err := unix.Statx(f.fd, "", unix.AT_EMPTY_PATH, unix.STATX_DIOALIGN, &st)
	if err == nil && st.Mask&unix.STATX_DIOALIGN != 0 && st.Dio_offset_align != 0 && st.Dio_mem_align != 0 {
		return max(least, int(st.Dio_offset_align)), int(st.Dio_mem_align)
	}
	if f.device {
		return least, safe
	}
	return safe, safe
}

// features asks the file what it can do, without changing what it holds.
func (f *file) features() block.Features {
	features := memoryFeatures | block.CanStatus
	if f.align == 1 {
		features |= block.CanPrefetch
	}
	if f.device {
		if unsupported(f.kernel.discard(f.fd, 0, 0)) {
			features &^= block.CanTrim
		}
	} else if size, err := f.kernel.size(f.fd); err == nil {
		// A hole behind the end changes nothing.
		end := (size + 4095) &^ 4095
		if unsupported(f.kernel.fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, 4096)) {
			features &^= block.CanTrim
		}
	}
	if rotational(f.fd, f.device) {
		features |= block.Rotational
	}
	return features
}

// rotational asks sysfs whether seeks are expensive; a device it does not know
// is not rotational.
func rotational(fd int, device bool) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	number := st.Dev
	if device {
		number = st.Rdev
	}
	at := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(number), unix.Minor(number))
	for _, path := range []string{at + "queue/rotational", at + "../queue/rotational"} {
		if text, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(text)) == "1"
		}
	}
	return false
}

// identify reads or makes the identity of the disk, which is locked. A disk
// without one has a UUID that ends with the process.
func (f *file) identify(o fileOptions) error {
	if !o.identity {
		return nil
	}
	id, err := identity.Open(identity.Options{
		FD: f.fd, Path: f.path, ReadOnly: o.readOnly, Folder: o.state, Log: o.log, Boot: o.boot,
		Flush: func() error { return f.kernel.fdatasync(f.fd) },
	})
	if err != nil {
		return err
	}
	f.identity = id
	if id.Failed() && !o.readOnly {
		_ = f.latch.Fail(identity.ErrFailed)
	}
	f.latch.Lost = func(cause error) { _ = id.Lost(cause) } // logged by the identity
	return nil
}
