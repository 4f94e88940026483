//go:build rbd && cgo

#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// A slot is what its callback gets.
struct slot {
	struct shim_queue *queue;
	uint32_t number;
};

struct shim_queue {
	rbd_image_t image;
	struct shim_request *requests;
	struct slot *slots;
	int fd;
	uint32_t depth;

	pthread_mutex_t mu; // guards the rest
	struct shim_result *results; // a ring: a slot has one result at a time
	uint32_t head, tail;
	int armed; // the owner sleeps, or is about to
	int rung; // fd is readable
};

struct shim_queue *shim_new(rbd_image_t image, uint32_t depth, int fd)
{
	struct shim_queue *q = calloc(1, sizeof *q);

	if (!q)
		return NULL;
	q->image = image;
	q->depth = depth;
	q->fd = fd;
	q->requests = calloc(depth, sizeof *q->requests);
	q->slots = calloc(depth, sizeof *q->slots);
	q->results = calloc(depth, sizeof *q->results);
	if (!q->requests || !q->slots || !q->results || pthread_mutex_init(&q->mu, NULL)) {
		free(q->requests);
		free(q->slots);
		free(q->results);
		free(q);
		return NULL;
	}
	for (uint32_t i = 0; i < depth; i++) {
		q->slots[i].queue = q;
		q->slots[i].number = i;
	}
	return q;
}

void shim_free(struct shim_queue *q)
{
	// The callback of the last result may still hold the lock.
	pthread_mutex_lock(&q->mu);
	pthread_mutex_unlock(&q->mu);
	pthread_mutex_destroy(&q->mu);
	free(q->requests);
	free(q->slots);
	free(q->results);
	free(q);
}

struct shim_request *shim_requests(struct shim_queue *q)
{
	return q->requests;
}

void shim_push(struct shim_queue *q, uint32_t slot, int64_t value)
{
	const uint64_t one = 1;
	ssize_t n;

	pthread_mutex_lock(&q->mu);
	q->results[q->tail % q->depth] = (struct shim_result){ .value = value, .slot = slot };
	q->tail++;
	if (q->armed) {
		q->armed = 0;
		q->rung = 1;
		n = write(q->fd, &one, sizeof one); // cannot block: the count is 0
		(void)n;
	}
	pthread_mutex_unlock(&q->mu);
}

static void completed(rbd_completion_t c, void *arg)
{
	struct slot *s = arg;
	int64_t value = rbd_aio_get_return_value(c);

	rbd_aio_release(c);
	shim_push(s->queue, s->number, value);
}

static int start(struct shim_queue *q, const struct shim_request *r, rbd_completion_t c)
{
	char *data = (char *)(uintptr_t)r->data;

	switch (r->op) {
	case SHIM_READ:
		return rbd_aio_read(q->image, r->offset, r->length, data, c);
	case SHIM_WRITE:
		return rbd_aio_write(q->image, r->offset, r->length, data, c);
	case SHIM_FLUSH:
		return rbd_aio_flush(q->image, c);
	case SHIM_DISCARD:
		return rbd_aio_discard(q->image, r->offset, r->length, c);
	case SHIM_ZERO:
		return rbd_aio_write_zeroes(q->image, r->offset, r->length, c, 0, 0);
	case SHIM_ZERO_THICK:
		return rbd_aio_write_zeroes(q->image, r->offset, r->length, c, RBD_WRITE_ZEROES_FLAG_THICK_PROVISION, 0);
	}
	return -EINVAL;
}

void shim_submit(struct shim_queue *q, const uint32_t *slots, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		rbd_completion_t c;
		int err = rbd_aio_create_completion(&q->slots[slots[i]], completed, &c);

		if (err == 0) {
			err = start(q, &q->requests[slots[i]], c);
			if (err != 0)
				rbd_aio_release(c); // it is refused: there is no callback
		}
		if (err != 0)
			shim_push(q, slots[i], err);
	}
}

uint32_t shim_reap(struct shim_queue *q, struct shim_result *to, uint32_t n)
{
	uint64_t rings;
	uint32_t got = 0;
	ssize_t r;

	pthread_mutex_lock(&q->mu);
	if (q->rung) {
		q->rung = 0;
		r = read(q->fd, &rings, sizeof rings); // cannot block: the count is 1
		(void)r;
	}
	q->armed = 0;
	while (got < n && q->head != q->tail)
		to[got++] = q->results[q->head++ % q->depth];
	pthread_mutex_unlock(&q->mu);
	return got;
}

int shim_arm(struct shim_queue *q)
{
	int armed;

	pthread_mutex_lock(&q->mu);
	armed = q->head == q->tail && !q->rung;
	if (armed)
		q->armed = 1;
	pthread_mutex_unlock(&q->mu);
	return armed;
}

// extents are those of a range while its objects are visited.
struct extents {
	struct shim_extent *to;
	uint64_t at, end;
	uint32_t count, room;
};

// append adds what is known up to a place, and returns 0 if there is no room.
static int append(struct extents *x, uint64_t until, uint32_t data)
{
	if (until > x->end)
		until = x->end;
	if (until <= x->at)
		return 1;
	if (x->count > 0 && x->to[x->count - 1].data == data) {
		x->to[x->count - 1].length += until - x->at;
	} else {
		if (x->count == x->room)
			return 0;
		x->to[x->count++] = (struct shim_extent){ .length = until - x->at, .data = data };
	}
	x->at = until;
	return 1;
}

static int visit(uint64_t offset, size_t length, int exists, void *arg)
{
	struct extents *x = arg;

	if (offset < x->at && x->count > 0)
		return -EILSEQ; // striped: a later object is known already
	if (!append(x, offset, 0) || !append(x, offset + length, exists != 0))
		return -E2BIG; // ends the iteration
	return 0;
}

int64_t shim_extents(rbd_image_t image, uint64_t offset, uint64_t length, struct shim_extent *to, uint32_t n)
{
	struct extents x = { .to = to, .at = offset, .end = offset + length, .room = n };
	int err = rbd_diff_iterate2(image, NULL, offset, length, 1, 1, visit, &x);

	if (err < 0 && !(err == -E2BIG && x.count > 0))
		return err;
	if (err == 0)
		append(&x, x.end, 0);
	return x.count;
}

static void changed(void *arg)
{
	const uint64_t one = 1;
	ssize_t n = write((int)(intptr_t)arg, &one, sizeof one);

	(void)n; // at its limit it is readable already
}

int shim_watch(rbd_image_t image, uint64_t *handle, int fd)
{
	return rbd_update_watch(image, handle, changed, (void *)(intptr_t)fd);
}

int shim_owner(rbd_image_t image, char *owner, size_t n)
{
	rbd_lock_mode_t mode;
	char *owners[8];
	size_t count = sizeof owners / sizeof owners[0];
	int err = rbd_lock_get_owners(image, &mode, owners, &count);

	owner[0] = 0;
	if (err == -ENOENT)
		return 0;
	if (err < 0)
		return err;
	if (count > 0) {
		strncpy(owner, owners[0], n - 1);
		owner[n - 1] = 0;
	}
	rbd_lock_get_owners_cleanup(owners, count);
	return 0;
}

int shim_option(rbd_image_t image, const char *name, char *value, size_t n)
{
	rbd_config_option_t *options = NULL;
	int count = 0;
	int err = rbd_config_image_list(image, NULL, &count);

	value[0] = 0;
	while (err == -ERANGE) {
		free(options);
		options = calloc(count, sizeof *options);
		if (!options)
			return -ENOMEM;
		err = rbd_config_image_list(image, options, &count);
	}
	if (err == 0) {
		for (int i = 0; i < count; i++) {
			if (strcmp(options[i].name, name) == 0) {
				strncpy(value, options[i].value, n - 1);
				value[n - 1] = 0;
			}
		}
		if (options)
			rbd_config_image_list_cleanup(options, count);
	}
	free(options);
	return err;
}
