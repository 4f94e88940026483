// Package identity keeps a record with a disk that tells it from every other
// and says which of its writes may be lost. A file backend opens, updates and
// closes the record; "viablk identity" shows, accepts and renews it.
//
// A record of 132 bytes says the UUID of a disk, how often answered writes may
// have been lost, who wrote last, and whether the disk was closed. It is an
// extended attribute of the backing file, or, where there are none, a file in a
// folder of viablk. Copying the attribute copies the record, so the record also
// says which file it belongs to:
//
//   - Another file under the same name, or a file made anew, has no record, or
//     one that names another inode and birth time: it is another disk.
//   - A file that another program changed while no target served it has another
//     modification time: another writer was there.
//   - A disk that was not closed, on a machine that was started since, may have
//     lost writes: the loss counter advances, and with it the write verifier.
//   - A failed flush advances the counter before it is answered, and marks the
//     disk as failed until a person accepts the loss.
//
// The package cannot notice a file that was overwritten in place after its
// target was killed and before the next one; a change with the old modification
// time set again; a change of a block device while no target served it; a copy
// of a whole file system, or a file system that went back to a snapshot, taken
// while the same writer was there.
package identity
