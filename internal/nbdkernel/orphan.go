package nbdkernel

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Connected is a device that the driver has connected.
type Connected struct {
	Node Node
	State
	Server int // the process of viablk that serves it; 0 if none does
}

// Devices returns the devices that viablk connected, by index, if the caller
// may ask who serves them. Without the driver there are none.
func Devices() ([]Connected, error) { return devices(sysfs, Folder) }

func devices(root, locks string) ([]Connected, error) {
	all, err := connected(root)
	errs := []error{err}
	var ours []Connected
	for _, d := range all {
		if d.Backend == "" {
			continue // another program connected it
		}
		if d.Server, err = d.Node.server(locks); err != nil {
			errs = append(errs, err)
			continue
		}
		ours = append(ours, d)
	}
	return ours, errors.Join(errs...)
}

// Orphans returns those of [Devices] that no process serves any more.
func Orphans() ([]Connected, error) { return orphans(sysfs, Folder) }

func orphans(root, locks string) ([]Connected, error) {
	all, err := devices(root, locks)
	return slices.DeleteFunc(all, func(d Connected) bool { return d.Server != 0 }), err
}

// connected returns the devices that are connected, by index.
func connected(root string) (all []Connected, err error) {
	folders, err := filepath.Glob(filepath.Join(root, "block", "nbd*"))
	if err != nil {
		return nil, err
	}
	for _, folder := range folders {
		index, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(folder), "nbd"))
		if err != nil {
			continue
		}
		s, err := Node(index).state(root)
		if err != nil {
			return nil, err
		}
		if s.Attached {
			all = append(all, Connected{Node: Node(index), State: s})
		}
	}
	slices.SortFunc(all, func(a, b Connected) int { return cmp.Compare(a.Node, b.Node) })
	return all, nil
}

// findBackend returns the first device that is connected to a backend.
func findBackend(root, backend string) (Node, bool, error) {
	all, err := connected(root)
	if i := slices.IndexFunc(all, func(d Connected) bool { return d.Backend == backend }); i >= 0 && err == nil {
		return all[i].Node, true, nil
	}
	return 0, false, err
}
