// Package overlay is the format of the file that keeps the changes of a
// copy-on-write disk. docs/overlays.md describes it for people.
//
// The file begins with the data of the disk, block for block at the offsets of
// the disk, with holes where nothing was written. Behind it are
//
//	map       which blocks of 4 KiB the file has: pages of a bit for each
//	          block, each page in two copies that are written in turn
//	answered  which blocks it has by the page cache: a byte for each block
//	header    whose disk it is, and over what: two copies of 4 KiB
//
// A block enters the map when its data is durable, so a block of the map is
// always whole; a torn copy leaves the other one, with the map of the last
// flush. A write that was answered and not flushed outlives the process and not
// the machine: the bytes count until the machine is started again.
package overlay
