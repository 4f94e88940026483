// Package nbdkernel makes block devices of the Linux kernel, /dev/nbdN, out of NBD
// connections that this process serves: no socket listens, both ends of a
// connection are made here, and one of them is given to the kernel's nbd driver.
//
//	Attach ─▶ socket pairs ─┬─ near ends ─▶ Config.Serve, a goroutine for each
//	                        └─ far ends ──▶ the driver, by generic netlink
//
// The files, from the bottom up: message.go is the bytes of generic netlink,
// netlink.go the socket they go through, driver.go what the nbd driver is asked for,
// node.go what is known of a device without asking it, claim.go who uses one, lock.go
// who serves one, and attachment.go a device that this process serves.
//
// What the driver is like shows in three rules. It is asked for something only by
// goroutines that serve no device: it may wait for requests under way before it
// answers. A connection that has ended is shut down, and all its requests are over,
// before the driver gets another in its place. And whether the driver has taken a
// connection is not believed, but looked at: it ignores those it has no use for.
package nbdkernel
