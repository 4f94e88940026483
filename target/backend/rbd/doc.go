// Package rbd is a disk in a Ceph cluster: an image, or a snapshot of one, by
// librbd.
//
//	block.Queue                                    threads of librbd
//	Submit │ Kick ── one call per batch ──▶ aio ─┐
//	       ▼                                     ▼
//	     slots ◀── Reap ── completions ◀── callbacks ═▶ eventfd
//
//	Status ──▶ worker, a goroutine that may wait for the cluster
//
// A disk has a connection to the cluster and an image handle of its own, which
// all its queues share: another client that fences it fences no other disk. A
// disk that is written holds the exclusive lock of its image from Open to
// Close, and refuses to hand it over. A client that breaks the lock has the
// cluster refuse this one before: the disk has ended then, see
// [block.Revocable].
//
// The client caches nothing, so that an answered write is on every replica and
// outlives this machine.
//
// The package is part of builds with the tag rbd and cgo. In other builds, Open
// returns [ErrNotBuilt].
//
// The data path, in order:
//
//	1 queue.go                a request gets a slot, and waits for Kick
//	2 completions_unsafe.go   one call submits all that wait
//	3 shim.c                  a thread of librbd queues the result and rings
//	4 queue.go                Reap fetches results, in one call
package rbd

import (
	"errors"
	"log/slog"
	"time"
)

// Config is an image and how to reach it.
type Config struct {
	Pool, Namespace, Image string
	Snapshot               string // "": the image itself; a snapshot is read-only

	// User is the name of the client in the cluster without "client."; "" is
	// admin. Conf is the configuration file; "" is CEPH_CONF or that of Ceph.
	User, Conf string

	// ReadOnly refuses everything that changes the image, and takes no lock.
	ReadOnly bool

	// Steal takes the image from the client that has its lock: the cluster
	// refuses that client from then on.
	Steal bool

	// Timeout bounds Open. 0 means a minute: the lock of a client that is dead
	// is free after 30 s.
	Timeout time.Duration

	// Log gets what a person should know. Nil discards it.
	Log *slog.Logger
}

// Name returns the image as a person writes it.
func (c *Config) Name() string {
	name := "rbd:" + c.Pool + "/"
	if c.Namespace != "" {
		name += c.Namespace + "/"
	}
	name += c.Image
	if c.Snapshot != "" {
		name += "@" + c.Snapshot
	}
	return name
}

var (
	// ErrNotBuilt means that this build has no librbd.
	ErrNotBuilt = errors.New("this build serves no Ceph images: install the package viablk-rbd, or build with -tags rbd, librbd-dev and librados-dev")

	// ErrInUse means that another client has the lock of the image.
	ErrInUse = errors.New("in use")

	// ErrUnsuitable means that an image cannot be served as it is. The text
	// says what to change.
	ErrUnsuitable = errors.New("unsuitable image")
)
