// Package nbdkernel makes block devices of the Linux kernel, /dev/nbdN, out of
// NBD connections that this process serves: no socket listens, both ends of a
// connection are made here, and one of them is given to the kernel's nbd
// driver.
//
//	Attach ─▶ socket pairs ─┬─ near ends ─▶ Config.Serve, a goroutine for each
//	                        └─ far ends ──▶ the driver, by generic netlink
//
// The files, from the bottom up: netlink.go is the way to a family of generic
// netlink, driver.go what the nbd driver is asked for, node.go what is known of
// a device without asking it, claim.go who uses one, lock.go who serves one,
// and attachment.go a device that this process serves.
//
// Three rules follow from the driver. It is asked for something only
// by goroutines that serve no device: it may wait for requests in flight before
// it answers. A connection that has ended is shut down, and all its requests
// are over, before the driver gets another in its place. And whether the driver
// has taken a connection is checked: it ignores those it has no use for.
package nbdkernel
