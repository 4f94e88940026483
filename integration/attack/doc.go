// Package attack holds the tests of sealed sessions against a fabric that reads
// and changes what it carries: whole targets and initiators in this process,
// over providers whose every message, RDMA transfer and exposed region is an
// attacker's.
package attack
