// Package attack holds the tests of sealed sessions against a fabric that reads
// and changes what it carries: whole targets and initiators in this process,
// over providers whose every message, RDMA transfer and exposed region is an
// attacker's; and processes of two hosts, with an attacker on the cable between
// them, who reads, changes, adds and repeats packets.
package attack
