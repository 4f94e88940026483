package vm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// cacheVariable names the folder of the cache, if it is set.
const cacheVariable = "VIABLK_VM_CACHE"

// cache is a folder of folders that are expensive to make. Each appears
// complete or not at all, so that several processes may use and fill a cache at
// the same time; one that fills it locks out the others.
type cache string

// openCache returns the cache of this user.
func openCache() (cache, error) {
	place := os.Getenv(cacheVariable)
	if place == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find a folder for the cache, which %s may name: %w", cacheVariable, err)
		}
		place = filepath.Join(user, "viablk-vm")
	}
	place, err := filepath.Abs(place)
	if err == nil {
		err = os.MkdirAll(place, 0o755)
	}
	if err != nil {
		return "", fmt.Errorf("make the cache: %w", err)
	}
	return cache(place), nil
}

// folder returns the path of an entry.
func (c cache) folder(name string) string { return filepath.Join(string(c), name) }

// fill makes the entries that are missing. make gets their names and an empty
// folder in which it makes a folder of each name.
func (c cache) fill(names []string, make func(missing []string, in string) error) error {
	if missing, err := c.missing(names); err != nil || len(missing) == 0 {
		return err
	}
	lock, err := os.OpenFile(c.folder("lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("lock the cache: %w", err)
	}
	defer lock.Close() // and unlock
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the cache: %w", err)
	}
	missing, err := c.missing(names)
	if err != nil || len(missing) == 0 {
		return err
	}
	in, err := os.MkdirTemp(string(c), "new-")
	if err != nil {
		return fmt.Errorf("fill the cache: %w", err)
	}
	defer os.RemoveAll(in)
	if err := make(missing, in); err != nil {
		return fmt.Errorf("fill the cache: %w", err)
	}
	for _, name := range missing {
		if err := os.Rename(filepath.Join(in, name), c.folder(name)); err != nil {
			return fmt.Errorf("fill the cache: %w", err)
		}
	}
	return nil
}

// missing returns the names that are not in the cache.
func (c cache) missing(names []string) ([]string, error) {
	var missing []string
	for _, name := range names {
		if _, err := os.Stat(c.folder(name)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, name)
		} else if err != nil {
			return nil, fmt.Errorf("look into the cache: %w", err)
		}
	}
	return missing, nil
}
