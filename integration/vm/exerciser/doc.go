// Package exerciser does random things to a file, a disk or a tree of files, and to a
// model in memory, and compares: what file systems and disks are tested with, in the
// manner of fsx and fsstress.
//
// What is done is up to a seed alone, so that a failure can be replayed, and what was done
// is part of every error.
package exerciser
