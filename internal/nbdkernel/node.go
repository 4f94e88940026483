package nbdkernel

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Node is a device of the nbd driver by its index: 3 is /dev/nbd3.
type Node int

// maximumIndex is the largest index that a device can have, if it has no room
// for partitions.
const maximumIndex = 1<<20 - 1

// Where the kernel tells of its devices.
const (
	sysfs         = "/sys"
	maxPartFile   = "module/nbd/parameters/max_part"
	processorFile = "devices/system/cpu/possible"
	defaultShift  = 5 // of the driver's 16 partitions
	bytesOfSector = 512
)

// ParseNode reads /dev/nbdN or nbdN.
func ParseNode(s string) (Node, error) {
	number, ok := strings.CutPrefix(strings.TrimPrefix(s, "/dev/"), "nbd")
	n, err := strconv.Atoi(number)
	if !ok || err != nil && !errors.Is(err, strconv.ErrRange) || n < 0 || strconv.Itoa(n) != number && err == nil {
		return 0, fmt.Errorf("%q is no device of the nbd driver: write /dev/nbd0", s)
	}
	if last := lastIndex(sysfs); err != nil || n > last {
		return 0, fmt.Errorf("%q is out of range: the last device of the nbd driver is %s", s, Node(last))
	}
	return Node(n), nil
}

// String returns the path of the device.
func (n Node) String() string { return "/dev/" + n.name() }

func (n Node) name() string { return "nbd" + strconv.Itoa(int(n)) }

// lastIndex returns the largest index that a device can have with as many
// partitions as the driver was told to give it.
func lastIndex(root string) int {
	shift := defaultShift
	if text, err := os.ReadFile(filepath.Join(root, maxPartFile)); err == nil {
		if parts, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31); err == nil {
			shift = bits.Len64(parts)
		}
	}
	return maximumIndex >> shift
}

// State is what the kernel says of a device.
type State struct {
	Attached    bool   // it is connected, if only to a process that is gone
	Size        int64  // bytes
	ReadOnly    bool   //
	Connections int    // that the driver knows it to have
	Backend     string // what it was connected to; empty if the one who did did not say

	RequestTimeout time.Duration // after which the driver sees to a request
}

// State returns what the kernel says of the device. One that the kernel has not
// made yet is not attached.
func (n Node) State() (State, error) { return n.state(sysfs) }

func (n Node) state(root string) (s State, err error) {
	folder := filepath.Join(root, "block", n.name())
	_, err = os.Stat(filepath.Join(folder, "pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("look at %s: %w", n, err)
	}
	s.Attached = true
	read := func(name string) string {
		text, failure := os.ReadFile(filepath.Join(folder, name))
		if failure != nil && !errors.Is(failure, fs.ErrNotExist) {
			err = fmt.Errorf("look at %s: %w", n, failure)
		}
		return strings.TrimSpace(string(text))
	}
	sectors, _ := strconv.ParseInt(read("size"), 10, 64)
	s.Size = sectors * bytesOfSector
	s.ReadOnly = read("ro") == "1"
	s.Backend = read("backend")
	milliseconds, _ := strconv.ParseInt(read("queue/io_timeout"), 10, 32)
	s.RequestTimeout = time.Duration(milliseconds) * time.Millisecond
	queues, _ := os.ReadDir(filepath.Join(folder, "mq")) // one for each connection
	s.Connections = len(queues)
	return s, err
}

// idle reports whether the driver has no request of the device, as far as the
// kernel counts them: it leaves out flushes, and all if it is told not to
// count.
func (n Node) idle(root string) bool {
	text, err := os.ReadFile(filepath.Join(root, "block", n.name(), "inflight")) // reads writes
	return err == nil && slices.Equal(strings.Fields(string(text)), []string{"0", "0"})
}

// announce has the kernel tell of the device once more: when it did first, it
// did not know to what the device is connected.
func (n Node) announce(root string) error {
	err := os.WriteFile(filepath.Join(root, "block", n.name(), "uevent"), []byte("change"), 0)
	if err != nil {
		return fmt.Errorf("announce %s: %w", n, err)
	}
	return nil
}

// usefulConnections returns how many connections of a device the kernel would
// use: it has no more queues than processors. It is at most n, and n if that is
// not known.
func usefulConnections(root string, n int) int {
	text, err := os.ReadFile(filepath.Join(root, processorFile))
	list := strings.TrimSpace(string(text)) // ranges: 0-3,8-11
	last, bad := strconv.Atoi(list[strings.LastIndexAny(list, ",-")+1:])
	if err != nil || bad != nil || last < 0 {
		return n
	}
	return min(n, last+1)
}
