// Package checksum is the format of the file that keeps checksums of the blocks
// of a disk. docs/checksums.md describes it for people.
//
// The file has
//
//	header  whose disk it is: two copies of 4 KiB, written in turn
//	groups  of 32256 regions each:
//	        intent  which regions may differ from their sums: a page of a bit
//	                for each region, in two copies that are written in turn
//	        sums    a page for each region: a CRC-32C of each of its blocks
//
// A region is marked in the intent, durably, before a block of it is written,
// and cleared when its data and its sums are durable. So the sums of a region
// that is not marked are those of its data whatever became of the machine, and
// those of a region that is marked say nothing after an unclean end.
package checksum
