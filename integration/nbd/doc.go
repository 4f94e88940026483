// Package nbd holds the tests of the NBD server with its clients: fio, libnbd's
// tools, QEMU's, raw bytes; on every way from a client to a disk.
package nbd
