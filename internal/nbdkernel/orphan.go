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
}

// Orphans returns the devices that viablk connected and that no process serves
// any more, by index. Without the driver there are none.
func Orphans() ([]Connected, error) { return orphans(sysfs, Folder) }

func orphans(root, locks string) ([]Connected, error) {
	all, err := connected(root)
	errs := []error{err}
	all = slices.DeleteFunc(all, func(d Connected) bool {
		if d.Backend == "" {
			return true // another program connected it
		}
		pid, err := d.Node.server(locks)
		errs = append(errs, err)
		return err != nil || pid != 0
	})
	return all, errors.Join(errs...)
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
			all = append(all, Connected{Node(index), s})
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
