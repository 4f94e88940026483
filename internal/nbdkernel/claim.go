package nbdkernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Claim is a device that no other program uses, or starts to use, as file
// system, swap space, member of an array or the like: as a whole or a partition
// of it. Programs that have it open without such a claim are not seen.
type Claim struct {
	node Node
	fd   int
}

// Claim takes the device. The error wraps [ErrBusy], and says what to do, if it
// is in use. The caller releases the claim.
func (n Node) Claim() (*Claim, error) {
	fd, err := unix.Open(n.String(), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("%s is %s: %w", n, n.use(sysfs, "/proc"), ErrBusy)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", n, err)
	}
	return &Claim{n, fd}, nil
}

// Flush has the kernel write what it holds of the device in its cache.
func (c *Claim) Flush() error {
	if err := unix.Fsync(c.fd); err != nil {
		return fmt.Errorf("write the cache of %s: %w: --force gives up what it holds", c.node, err)
	}
	return nil
}

// Release lets others use the device.
func (c *Claim) Release() { unix.Close(c.fd) }

// use says what a device that is in use is in use for, and how that is ended.
func (n Node) use(root, proc string) string {
	numbers := n.numbers(root)
	mounts, _ := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line) // ID parent major:minor root mount-point …
		if len(fields) > 4 && numbers[fields[2]] {
			return "mounted at " + unescape(fields[4]) + ": unmount it first"
		}
	}
	swaps, _ := os.ReadFile(filepath.Join(proc, "swaps"))
	for line := range strings.Lines(string(swaps)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && n.isPart(fields[0]) {
			return "swap space: swapoff " + fields[0] + " first"
		}
	}
	holders, _ := filepath.Glob(filepath.Join(root, "block", n.name(), "holders", "*"))
	more, _ := filepath.Glob(filepath.Join(root, "block", n.name(), n.name()+"p*", "holders", "*"))
	for _, holder := range append(holders, more...) {
		return "part of /dev/" + filepath.Base(holder) + ": take that apart first"
	}
	return "used by another program, or mounted where this process does not see it: end that first"
}

// isPart reports whether a path is that of the device or a partition of it.
func (n Node) isPart(path string) bool {
	rest, ok := strings.CutPrefix(path, n.String())
	return ok && (rest == "" || rest[0] == 'p')
}

// numbers returns major:minor of the device and of its partitions.
func (n Node) numbers(root string) map[string]bool {
	numbers := make(map[string]bool)
	whole := filepath.Join(root, "block", n.name(), "dev")
	parts, _ := filepath.Glob(filepath.Join(root, "block", n.name(), n.name()+"p*", "dev"))
	for _, file := range append(parts, whole) {
		if text, err := os.ReadFile(file); err == nil {
			numbers[strings.TrimSpace(string(text))] = true
		}
	}
	return numbers
}

// unescape undoes how the kernel writes spaces and the like in a mount point.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// freeLimit is how long an end waits for programs that look at a device after
// its disconnect.
const freeLimit = 5 * time.Second

// awaitFree waits until the kernel has given up a device that was disconnected
// and is not claimed, so that it can be attached again: it keeps one that a
// program has open. udev opens each that changes, for some milliseconds.
func (n Node) awaitFree(ctx context.Context, root string) {
	ctx, done := context.WithTimeout(ctx, freeLimit)
	defer done()
	for ctx.Err() == nil {
		if state, err := n.state(root); err != nil || !state.Attached {
			return
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
		}
	}
}

// Detach takes a device from the process that serves it, and waits until that
// has ended. The kernel writes its cache of the device first. The
// error wraps [ErrBusy] if the device is in use, unless force is set: then it
// is taken at once, and what uses it fails.
func (d *Driver) Detach(ctx context.Context, n Node, force bool) error {
	pid, err := n.Server()
	if err != nil {
		return err
	}
	if force {
		err = d.Disconnect(n)
	} else {
		err = d.detachUnused(n, pid)
	}
	if err != nil {
		return err
	}
	for pid != 0 && err == nil {
		select {
		case <-time.After(lockPause):
			pid, err = n.Server()
		case <-ctx.Done():
			return fmt.Errorf("%s is detached, and process %d that served it has not ended yet: %w", n, pid, context.Cause(ctx))
		}
	}
	if !force {
		n.awaitFree(ctx, sysfs)
	}
	return err
}

// detachUnused disconnects a device that no program uses. pid serves it, or is
// 0.
func (d *Driver) detachUnused(n Node, pid int) error {
	claim, err := n.Claim()
	if err != nil {
		return err
	}
	defer claim.Release()
	if pid != 0 { // else it would wait for a process that serves it
		if err := claim.Flush(); err != nil {
			return err
		}
	}
	return d.Disconnect(n)
}
