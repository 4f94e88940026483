// Package hook decorates providers: each decorator is a via.Provider around
// another one, forwards everything, and adds one thing. They stack:
//
//	p := hook.Trace(hook.Stats(shm.New(shm.Options{})), os.Stderr)
//
// # Trace
//
// Trace writes a line per event. A device, a completion queue and a link have
// numbers in the order of their creation; works are numbered in the order of
// their posts to one direction of one link.
//
//	dev 1 open shm                  device 1 of provider shm is open
//	dev 1 reg a3c10002 +4096 tag 1 rw   region: handle, bytes, tag, rights
//	dev 1 upd a3c10002 tag 1 -      its attributes changed
//	dev 1 dereg a3c10002            it is withdrawn
//	dev 1 cq 2                      completion queue 2
//	dev 1 link 3 depth 128/128 cq 2/2   link 3: send/receive depth and queues
//	3 > send #7 4096/2 imm 1f       post: work, bytes/segments, immediate data
//	3 > write #8 4096/1 @7f0010 b7c10003   RDMA: remote address and handle
//	3 > read #9 512/1 @7f0010 b7c10003
//	3 > recv #4 65536/1
//	3 x send #10                    the link had no room; it is offered again
//	3 bell                          doorbell
//	3 < send #7 ok 4096             completion: status, bytes
//	3 < recv #4 ok 100 imm 1f       and immediate data
//	3 < write #8 remote protection error 0
//	3 ! connection lost broken: the peer disconnected  event: link gone
//	3 ! receive queue empty: a message met no receive  link stays
//	3 close                         the link closes; works are flushed
//
// Numbers after @, of handles and of immediate data are hexadecimal. A post
// that a fence holds back appears when the link gets it.
//
// # Stats
//
// Stats counts posts, completions, errors and bytes per opcode, with a
// histogram of the time between post and completion.
//
// # Fault
//
// Fault misbehaves as a fabric may, by a seeded plan. At its own level it fails
// registrations, refuses, delays and breaks connects, has no room for posts,
// delays completions, cuts links and reports them broken, and lets devices
// fail.
//
// Faults of a message in flight happen below: a plan's Faults and Chances
// become the via.Faults of the links, both of those that connect and of those
// that accept, and the provider loses, doubles, reorders, damages or cuts its
// own units on the wire.
//
// A device that failed has every link closed inside; each reports
// AsyncCatastrophic after what is held back, and a sleeper wakes to hear it.
// Its other calls, but those that release something, return
// via.ErrDeviceFailed.
package hook
