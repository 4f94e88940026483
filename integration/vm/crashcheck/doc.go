// Package crashcheck writes to a disk that may lose its power, and keeps book
// of what the disk has promised: after the cut every block holds what it
// promised last, or something that was written behind that.
//
// A disk is made of blocks, a block of sectors. A write has a generation, a
// number that no other write of the log has, and every sector that it writes
// says so in each of its words. A write that is answered may still be lost; one
// with FUA that is answered, and one that was answered before a flush was asked
// for that is answered, may not. A write that may be lost may be lost in part,
// sector by sector.
package crashcheck
