// Package workload does random things to a file, a disk or a tree of files, and
// to a model in memory, and compares: what file systems and disks are tested
// with, in the manner of fsx and fsstress.
//
// The seed alone determines the operations, so that a failure can be replayed,
// and every error lists the operations.
package workload
