// Package uring is a queue of reads and writes of one file that the kernel
// executes: io_uring(7), as much of it as a disk in a file needs.
//
// A [Ring] is two rings of memory that it shares with the kernel. Operations
// are put into one of them, any number is handed over with one system call
// ([Ring.Submit]), and their results are taken from the other ([Ring.Next])
// without any. No thread waits for an operation: the file descriptor of the
// ring is readable while there are results.
//
// A ring is refused by kernels before 5.6, and where a sandbox or
// /proc/sys/kernel/io_uring_disabled forbids it: [Probe] says why.
package uring
