// Package history records what clients of a disk did and saw, and checks that
// the disk is linearizable: that each block behaves as if every request took
// effect at one moment between its beginning and its end.
//
//	clients ─▶ Load.Run ─▶ Disk (Conn: NBD)
//	               └─▶ History ─▶ Check ─▶ Violation ─▶ Visualize
//	                      └─▶ Save, Replay: the same history again
//
// A Monitor in place of a History checks operations as they come, millions of
// them, in bounded memory. An Anomaly is the few operations that prove it.
//
// A write fills each block of it with a value that no other write has, so that
// a read says which write it saw. A request of several blocks is one operation
// on each of them: the disk promises atomicity of a block, no more.
//
// A write whose answer never came, because the disk or the connection was gone,
// may have taken effect at any time after its beginning, or not at all; such a
// read says nothing. Tests that kill a process record the first as Lost.
//
// Tests alone use the package.
package history
