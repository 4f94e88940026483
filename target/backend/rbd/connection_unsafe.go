//go:build rbd && cgo

package rbd

// #cgo LDFLAGS: -lrbd -lrados
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"unsafe"
)

// connection is a connection to the cluster with one open image. Its calls wait
// for the cluster, and are safe for concurrent use; close is the last one.
type connection struct {
	cluster C.rados_t
	pool    C.rados_ioctx_t // nil until it is open
	image   C.rbd_image_t   // nil until it is open
	watch   C.uint64_t
	watched bool
}

// settings hold whatever the configuration says. Without a cache an answered
// write is on the disks of the cluster. An operation that has a timeout could
// take effect after it was answered.
var settings = [...][2]string{
	{"rbd_cache", "false"},
	{"rados_osd_op_timeout", "0"},
	{"client_mount_timeout", "20"}, // s
	{"rados_mon_op_timeout", "20"}, // s
}

// result converts the result of librbd to an error; what is not negative is
// nil.
func result(code C.int) error {
	if code >= 0 {
		return nil
	}
	return syscall.Errno(-code)
}

// cString returns a copy in C of a text, NULL for "", and what frees it.
//
// Safety: C.CString allocates by malloc, and the caller frees it once, after
// the call that it is for.
func cString(s string) (p *C.char, free func()) {
	if s == "" {
		return nil, func() {}
	}
	p = C.CString(s)
	return p, func() { C.free(unsafe.Pointer(p)) }
}

// open connects to the cluster and opens the image. The caller calls close even
// if it fails.
func (c *connection) open(cfg *Config) error {
	if err := c.connect(cfg); err != nil {
		return err
	}
	name, free := cString(cfg.Pool)
	defer free()
	switch err := result(C.rados_ioctx_create(c.cluster, name, &c.pool)); err {
	case nil:
	case syscall.ENOENT:
		return fmt.Errorf("the cluster has no pool %q, or hides it from client.%s: %w", cfg.Pool, cfg.user(), fs.ErrNotExist)
	default:
		return fmt.Errorf("open pool %q: %w", cfg.Pool, err)
	}
	namespace, freeNamespace := cString(cfg.Namespace)
	defer freeNamespace()
	C.rados_ioctx_set_namespace(c.pool, namespace)
	C.rados_set_pool_full_try(c.pool) // a full cluster answers instead of waiting
	return c.openImage(cfg)
}

// connect connects to the cluster.
func (c *connection) connect(cfg *Config) error {
	user, free := cString("client." + cfg.user())
	defer free()
	name, freeName := cString("ceph")
	defer freeName()
	if err := result(C.rados_create2(&c.cluster, name, user, 0)); err != nil {
		c.cluster = nil
		return fmt.Errorf("make a client of Ceph: %w", err)
	}
	conf, freeConf := cString(cfg.Conf)
	defer freeConf()
	if err := result(C.rados_conf_read_file(c.cluster, conf)); err != nil {
		return fmt.Errorf("read the configuration of Ceph%s: %w: name the file by conf=PATH", quoted(cfg.Conf), err)
	}
	for _, s := range settings {
		if err := c.set(s[0], s[1]); err != nil {
			return fmt.Errorf("set %s of Ceph: %w", s[0], err)
		}
	}
	switch err := result(C.rados_connect(c.cluster)); err {
	case nil:
		return nil
	case syscall.ENOENT:
		return fmt.Errorf("connect to the cluster: no keyring of client.%s is there: make /etc/ceph/ceph.client.%s.keyring readable, or give user=NAME: %w",
			cfg.user(), cfg.user(), fs.ErrNotExist)
	case syscall.ETIMEDOUT:
		return fmt.Errorf("connect to the cluster: no monitor answers: is mon_host of the configuration right, and the cluster up? %w", err)
	case syscall.EACCES, syscall.EPERM, syscall.EOPNOTSUPP:
		return fmt.Errorf("connect to the cluster: it refuses client.%s: compare the keyring with \"ceph auth get\": %w (%w)", cfg.user(), err, fs.ErrPermission)
	default:
		return fmt.Errorf("connect to the cluster: %w", err)
	}
}

// set sets an option. One that this librados does not know is left out.
func (c *connection) set(option, value string) error {
	o, freeOption := cString(option)
	defer freeOption()
	v, freeValue := cString(value)
	defer freeValue()
	if err := result(C.rados_conf_set(c.cluster, o, v)); err != syscall.ENOENT {
		return err
	}
	return nil
}

// openImage opens the image or its snapshot.
func (c *connection) openImage(cfg *Config) error {
	name, free := cString(cfg.Image)
	defer free()
	snapshot, freeSnapshot := cString(cfg.Snapshot)
	defer freeSnapshot()
	var code C.int
	if cfg.ReadOnly {
		code = C.rbd_open_read_only(c.pool, name, &c.image, snapshot)
	} else {
		code = C.rbd_open(c.pool, name, &c.image, nil)
	}
	switch err := result(code); err {
	case nil:
		return nil
	case syscall.ENOENT:
		return fmt.Errorf("there is no such image or snapshot: \"rbd create --size SIZE %s/%s\" makes an image: %w", cfg.Pool, cfg.Image, fs.ErrNotExist)
	case syscall.EACCES, syscall.EPERM:
		return fmt.Errorf("the cluster refuses the image to client.%s: %w (%w)", cfg.user(), err, fs.ErrPermission)
	default:
		return fmt.Errorf("open the image: %w", err)
	}
}

// close closes what is open. It gives up the lock.
func (c *connection) close() (err error) {
	if c.image != nil {
		if c.watched {
			err = result(C.rbd_update_unwatch(c.image, c.watch))
		}
		err = errors.Join(err, result(C.rbd_close(c.image)))
	}
	if c.pool != nil {
		C.rados_ioctx_destroy(c.pool)
	}
	if c.cluster != nil {
		C.rados_shutdown(c.cluster)
	}
	return err
}

// size returns the present size in bytes.
func (c *connection) size() (int64, error) {
	var size C.uint64_t
	err := result(C.rbd_get_size(c.image, &size))
	return int64(size), err
}

// grow makes the image larger, never smaller.
func (c *connection) grow(size int64) error {
	return result(C.rbd_resize2(c.image, C.uint64_t(size), C.bool(false), nil, nil))
}

// features returns the features of the image.
func (c *connection) features() (uint64, error) {
	var f C.uint64_t
	err := result(C.rbd_get_features(c.image, &f))
	return uint64(f), err
}

// stripeUnit returns what is in one object at a stretch, in bytes.
func (c *connection) stripeUnit() (uint64, error) {
	var unit C.uint64_t
	err := result(C.rbd_get_stripe_unit(c.image, &unit))
	return uint64(unit), err
}

// textLimit bounds the texts that librbd returns, in bytes.
const textLimit = 4096

// text calls a function of librbd that stores a text.
//
// Safety: the buffer is memory of C for textLimit bytes, the function ends the
// text with a zero within it, and it is freed afterwards.
func text(call func(p *C.char, n C.size_t) C.int) (string, error) {
	p := (*C.char)(C.calloc(1, textLimit))
	defer C.free(unsafe.Pointer(p))
	if err := result(call(p, textLimit)); err != nil {
		return "", err
	}
	return C.GoString(p), nil
}

// option returns the value of an option that holds for the image.
func (c *connection) option(name string) (string, error) {
	n, free := cString(name)
	defer free()
	return text(func(p *C.char, size C.size_t) C.int { return C.shim_option(c.image, n, p, size) })
}

// identifier returns what names this image in its cluster: cluster, pool,
// image, snapshot.
func (c *connection) identifier(snapshot string) (cluster, image string, err error) {
	cluster, err = text(func(p *C.char, n C.size_t) C.int { return C.rados_cluster_fsid(c.cluster, p, n) })
	if err != nil {
		return "", "", err
	}
	id, err := text(func(p *C.char, n C.size_t) C.int { return C.rbd_get_id(c.image, p, n) })
	if err != nil {
		return "", "", err
	}
	var snap C.uint64_t
	if snapshot != "" {
		name, free := cString(snapshot)
		defer free()
		if err := result(C.rbd_snap_get_id(c.image, name, &snap)); err != nil {
			return "", "", err
		}
	}
	return cluster, fmt.Sprintf("%s %d %s %d", cluster, int64(C.rados_ioctx_get_id(c.pool)), id, uint64(snap)), nil
}

// owner returns the address of the client that has the lock, "" if there is
// none.
func (c *connection) owner() (string, error) {
	return text(func(p *C.char, n C.size_t) C.int { return C.shim_owner(c.image, p, n) })
}

// acquire takes the lock of the image, for good. The error is EROFS if another
// client has it and lives.
func (c *connection) acquire() error {
	return result(C.rbd_lock_acquire(c.image, C.RBD_LOCK_MODE_EXCLUSIVE))
}

// breakLock has the cluster refuse the owner, and frees the lock.
func (c *connection) breakLock(owner string) error {
	o, free := cString(owner)
	defer free()
	return result(C.rbd_lock_break(c.image, C.RBD_LOCK_MODE_EXCLUSIVE, o))
}

// metadata returns the value of a key of the image. The error is ENOENT if
// there is none.
func (c *connection) metadata(key string) (string, error) {
	k, free := cString(key)
	defer free()
	return text(func(p *C.char, n C.size_t) C.int { return C.rbd_metadata_get(c.image, k, p, &n) })
}

// setMetadata stores the value of a key, durably.
func (c *connection) setMetadata(key, value string) error {
	k, free := cString(key)
	defer free()
	v, freeValue := cString(value)
	defer freeValue()
	return result(C.rbd_metadata_set(c.image, k, v))
}

// flush returns when all writes are durable.
func (c *connection) flush() error { return result(C.rbd_flush(c.image)) }

// notify has changes of the image make fd readable, an eventfd that is open
// until close has returned.
func (c *connection) notify(fd int) error {
	err := result(C.shim_watch(c.image, &c.watch, C.int(fd)))
	c.watched = err == nil
	return err
}

// extent is a part of an image that has data, or has none.
type extent struct {
	length int64
	data   bool
}

// extents describes a range, from its beginning, by as many extents as dst has
// room for.
//
// Safety: librbd's callback stores up to n extents to memory of C for n, which
// is read afterwards and then freed.
func (c *connection) extents(off, length int64, dst []extent) ([]extent, error) {
	n := cap(dst)
	p := (*C.struct_shim_extent)(C.calloc(C.size_t(n), C.sizeof_struct_shim_extent))
	defer C.free(unsafe.Pointer(p))
	got := C.shim_extents(c.image, C.uint64_t(off), C.uint64_t(length), p, C.uint32_t(n))
	if got < 0 {
		return nil, syscall.Errno(-got)
	}
	for _, e := range unsafe.Slice(p, int(got)) {
		dst = append(dst, extent{int64(e.length), e.data != 0})
	}
	return dst, nil
}

// quoted returns a path as it is added to a text.
func quoted(path string) string {
	if path == "" {
		return ""
	}
	return fmt.Sprintf(" %q", path)
}
