package workload

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Trees are trees of files in a folder, one for each worker, and what is done
// to them.
type Trees struct {
	Folder     string
	Workers    int
	Seed       uint64
	Operations int // of each worker

	// apply does an operation, in a tree; nil is doTree.
	apply func(root string, o treeOp) error
}

// Exercise makes the trees, of which there is nothing, by random operations of
// all workers at the same time, and compares files and folders now and then. In
// the end it compares all of it.
func (t Trees) Exercise() error {
	apply := t.apply
	if apply == nil {
		apply = doTree
	}
	return t.each(func(root string, p *plan) error {
		if err := os.Mkdir(root, 0o755); err != nil {
			return err
		}
		var history []treeOp
		for range t.Operations {
			o := p.next()
			history = append(history, o)
			err := apply(root, o)
			switch {
			case err != nil:
			case o.kind == readFile || o.kind == listFolder:
				err = checkNode(root, o.path, p.tree.find(o.path))
			}
			if err != nil {
				return fmt.Errorf("%v: %w\n%s", o, err, tellTree(history))
			}
		}
		if err := checkTree(root, p.tree); err != nil {
			return fmt.Errorf("%w\n%s", err, tellTree(history))
		}
		return nil
	})
}

// Check compares trees that Exercise has made, at another time, with what they
// were then.
func (t Trees) Check() error {
	return t.each(func(root string, p *plan) error {
		for range t.Operations {
			p.next()
		}
		return checkTree(root, p.tree)
	})
}

// each calls do for each worker, at the same time.
func (t Trees) each(do func(root string, p *plan) error) error {
	failures := make([]error, t.Workers)
	var group sync.WaitGroup
	for i := range t.Workers {
		group.Go(func() {
			root := filepath.Join(t.Folder, fmt.Sprintf("w%d", i))
			if err := do(root, newPlan(t.Seed+uint64(i))); err != nil {
				failures[i] = fmt.Errorf("seed %d, tree %s: %w", t.Seed, root, err)
			}
		})
	}
	group.Wait()
	return errors.Join(failures...)
}
