package workload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The file system of this machine passes, and another process would know what
// it is to hold.
func TestTreesOfThisMachine(t *testing.T) {
	trees := Trees{Folder: t.TempDir(), Workers: 3, Seed: chosen(t), Operations: 800}
	if err := trees.Exercise(); err != nil {
		t.Fatal(err)
	}
	if err := trees.Check(); err != nil {
		t.Fatal(err)
	}
	var file string
	if err := filepath.WalkDir(trees.Folder, func(path string, d os.DirEntry, err error) error {
		if info, e := d.Info(); e == nil && info.Mode().IsRegular() && info.Size() > 0 {
			file = path
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := writeAt(file, []byte{0xff ^ first(t, file)}, 0); err != nil {
		t.Fatal(err)
	}
	if err := trees.Check(); err == nil || !strings.Contains(err.Error(), "wrong from 0x0 on") {
		t.Errorf("a byte that is wrong is not found: %v", err)
	}
}

func first(t *testing.T, file string) byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data[0]
}

// Every kind is done, by every seed.
func TestPlanIsOfAllKinds(t *testing.T) {
	p := newPlan(chosen(t))
	var counts [treeKinds]int
	for range 3000 {
		counts[p.next().kind]++
	}
	for k, n := range counts {
		if n == 0 {
			t.Errorf("%v is never done", treeKind(k))
		}
	}
}

// The comparison detects a file system that loses operations.
func TestFileSystemThatLosesOperations(t *testing.T) {
	s := chosen(t)
	for _, forgets := range []treeKind{
		makeFile, removeFile, renameNode, writeFile, truncateFile, linkFile, linkName, changeMode, setAttribute,
		removeAttribute, exchangeNodes, makeFolder, removeFolder,
	} {
		t.Run(forgets.String(), func(t *testing.T) {
			var err error
			for n, operations := 0, 1500; n <= 2 && err == nil; operations *= 2 { // until one is lost
				n = 0
				trees := Trees{Folder: t.TempDir(), Workers: 1, Seed: s, Operations: operations, apply: func(root string, o treeOp) error {
					if o.kind == forgets {
						if n++; n > 2 {
							return nil
						}
					}
					return doTree(root, o)
				}}
				err = trees.Exercise()
			}
			if err == nil || !strings.Contains(err.Error(), "seed") {
				t.Errorf("it is not found out: %v", err)
			}
		})
	}
}
