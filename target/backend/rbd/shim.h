//go:build rbd && cgo

#ifndef VIABLK_RBD_SHIM_H
#define VIABLK_RBD_SHIM_H

#include <rados/librados.h>
#include <rbd/librbd.h>

enum { SHIM_READ, SHIM_WRITE, SHIM_FLUSH, SHIM_DISCARD, SHIM_ZERO, SHIM_ZERO_THICK };

// A request of a slot, written by the owner of the queue before it submits it.
struct shim_request {
	uint64_t offset, length;
	uint64_t data; // the address of the payload
	uint32_t op;
};

struct shim_result {
	int64_t value; // of librbd: bytes, 0, or a negative errno
	uint32_t slot;
};

struct shim_queue;

// The owner of a queue calls these, but for shim_push, which any thread may call
// for a slot in flight. A queue is freed when no slot is in flight. fd is an
// eventfd, which the owner closes after that.
struct shim_queue *shim_new(rbd_image_t image, uint32_t depth, int fd);
void shim_free(struct shim_queue *q);
struct shim_request *shim_requests(struct shim_queue *q);
void shim_submit(struct shim_queue *q, const uint32_t *slots, uint32_t n);
void shim_push(struct shim_queue *q, uint32_t slot, int64_t value);
uint32_t shim_reap(struct shim_queue *q, struct shim_result *to, uint32_t n);

// shim_arm returns 0 if there are results. Otherwise the next one makes fd
// readable.
int shim_arm(struct shim_queue *q);

struct shim_extent {
	uint64_t length;
	uint32_t data; // or a hole
};

// shim_extents describes a range by n extents at most, from its beginning, and
// returns how many, or a negative errno, EILSEQ if the objects of the range are
// not in its order. It waits for the cluster.
int64_t shim_extents(rbd_image_t image, uint64_t offset, uint64_t length, struct shim_extent *to, uint32_t n);

// shim_watch has changes of the image ring fd, until rbd_update_unwatch.
int shim_watch(rbd_image_t image, uint64_t *handle, int fd);

// shim_owner stores the address of the client that has the exclusive lock, which
// is empty if there is none.
int shim_owner(rbd_image_t image, char *owner, size_t n);

// shim_option stores the value of an option that holds for the image, which is
// empty if librbd does not know the option.
int shim_option(rbd_image_t image, const char *name, char *value, size_t n);

#endif
