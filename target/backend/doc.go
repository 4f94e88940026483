// Package backend holds the disks that a target serves: memory, files, block
// devices and wrappers around them. The command opens one for each export and
// closes it; the target and the NBD server only use its queues.
//
// [Open] turns a specification, one line of text, into a [block.Device]:
//
//	memory:SIZE                      memory, gone when closed, or taken over
//	null:SIZE                        reads zeroes, forgets writes
//	file:PATH[?OPTION=VALUE&…]       a regular file or a block device
//	mmap:PATH[?OPTION=VALUE&…]       a file, read from the page cache
//	cow:BASE,OVERLAY[?OPTION=…]      a base and the writes over it
//	crc:SPEC,SUMS[?lock=0]           SPEC with a checksum of each block
//	nbd://HOST/EXPORT, …             an export, by Options.NBD
//	run:[COMMAND …]                  a server that the disk starts, same
//	rbd:POOL/IMAGE[@SNAPSHOT][?…]    an image of Ceph, see package rbd
//	delay:OP=TIME[,…]:SPEC           SPEC, slower
//	fault:OP=FAULT[@WHEN…][,…]:SPEC  SPEC with faults
//	volatile:SPEC                    SPEC behind a cache that a crash loses
//
// [Parse] is the half of it that opens nothing: it tells what is wrong with the
// text alone.
//
// See [ParseSize] for SIZE, and the types behind the schemes for their options.
// The package does not check requests: [block.Info.Check] did that where they
// entered the process.
package backend
