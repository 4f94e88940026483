package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"

	"github.com/viablk/viablk/integration/vm/workload"
)

// exerciseFile exercises a new file, whose file system has to be able to do all
// there is.
func exerciseFile(flags *flag.FlagSet) func() error {
	path := flags.String("path", "", "the `FILE`")
	size := flags.Int64("size", 1<<20, "the most it ever has, bytes")
	seed := flags.Uint64("seed", 1, "of what is done")
	operations := flags.Int("operations", 1000, "how many")
	return func() error {
		f, err := workload.OpenFile(*path, *size)
		if err != nil {
			return err
		}
		for k := workload.Read; k <= workload.Forget; k++ {
			isOfDisks := k == workload.Discard || k == workload.ZeroOut
			if !isOfDisks && !slices.Contains(f.Kinds(), k) {
				return errors.Join(fmt.Errorf("the file system of %s cannot %v", *path, k), f.Close())
			}
		}
		counts, err := workload.Exercise(f, *seed, *operations)
		fmt.Println(counts)
		return errors.Join(err, f.Close())
	}
}

// exerciseDisk exercises the beginning of a disk.
func exerciseDisk(flags *flag.FlagSet) func() error {
	path := flags.String("path", "", "the `DEVICE`")
	zones := flags.Int("zones", 4, "which are exercised at the same time")
	size := flags.Int64("size", 1<<20, "of a zone, bytes")
	seed := flags.Uint64("seed", 1, "of what is done")
	operations := flags.Int("operations", 1000, "of each zone")
	return func() error {
		counts, err := workload.ExerciseDisk(*path, *zones, *size, *seed, *operations)
		fmt.Println(counts)
		return err
	}
}

// treeFlags are those of the trees that are made and of those that are there.
func treeFlags(flags *flag.FlagSet) *workload.Trees {
	t := &workload.Trees{}
	flags.StringVar(&t.Folder, "folder", "", "where the trees are, a `FOLDER`")
	flags.IntVar(&t.Workers, "workers", 4, "each with a tree")
	flags.Uint64Var(&t.Seed, "seed", 1, "of what is done")
	flags.IntVar(&t.Operations, "operations", 1000, "of each worker")
	return t
}

// exerciseTrees makes trees, checkTrees compares what is left of them.
func exerciseTrees(flags *flag.FlagSet) func() error {
	t := treeFlags(flags)
	return func() error { return t.Exercise() }
}

func checkTrees(flags *flag.FlagSet) func() error {
	t := treeFlags(flags)
	return func() error { return t.Check() }
}
