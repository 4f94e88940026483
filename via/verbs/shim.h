//go:build verbs && cgo

#ifndef VIABLK_VERBS_SHIM_H
#define VIABLK_VERBS_SHIM_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

// Work requests and completions cross from and to Go as arrays of structures
// without pointers: a batch is one call.

enum { SHIM_SEND, SHIM_WRITE, SHIM_READ };
enum { SHIM_IMMEDIATE = 1, SHIM_SIGNAL = 2, SHIM_INLINE = 4 };

struct shim_wr {
	uint64_t id;
	uint64_t remote_addr;
	uint32_t rkey;
	uint32_t immediate;
	uint32_t first_sge; // of sges, in the array of the batch
	uint16_t sges;
	uint8_t op;
	uint8_t flags;
};

struct shim_wc {
	uint64_t id;
	uint32_t length;
	uint32_t immediate;
	uint32_t status; // of enum ibv_wc_status
	uint8_t has_immediate;
	uint8_t by_write;
	uint8_t pad[2];
};

// What a call takes at most.
#define SHIM_BATCH 64

// shim_post posts receives, then requests to send. *received and *sent tell how
// many were posted; the result is 0 or an errno.
int shim_post(struct ibv_qp *qp, const struct shim_wr *recv, int recvs,
	const struct shim_wr *send, int sends, const struct ibv_sge *sge,
	int *received, int *sent);

// shim_poll returns how many completions it stored, or -1.
int shim_poll(struct ibv_cq *cq, struct shim_wc *wc, int n);

// shim_arm takes the events of the channel, tells how many there were, asks for the
// next one and polls.
int shim_arm(struct ibv_cq *cq, struct ibv_comp_channel *channel, struct shim_wc *wc, int n, int *events);

// shim_take takes the events of the channel, and returns how many.
int shim_take(struct ibv_cq *cq, struct ibv_comp_channel *channel);

struct shim_limits {
	uint64_t max_mr_size, guid;
	int max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr, max_pd, reads, on_demand;
	uint32_t max_message, mtu;
	int port, state, link_layer;
};

int shim_limits(struct ibv_context *context, int port, struct shim_limits *out);

struct ibv_mr *shim_register(struct ibv_pd *pd, void *addr, size_t length, int write, int read, int on_demand);

struct ibv_qp *shim_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv,
	int send_depth, int recv_depth, int sges, int *inline_size);

struct shim_terms {
	int write, read;
	int reads_served, reads_asked;
	int rnr_timer, rnr_retries, timeout, retries;
};

// shim_connect takes a new queue pair to its last state, by what the connection
// manager knows of the connection.
int shim_connect(struct ibv_qp *qp, struct rdma_cm_id *id, const struct shim_terms *t);
int shim_break(struct ibv_qp *qp);
int shim_state(struct ibv_qp *qp);

struct shim_event {
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *listener;
	int kind, status;
	int reads_served, reads_asked, rnr_retries;
	uint32_t qpn;
	int private_size;
	uint8_t private_data[256];
};

// shim_event gets the next event, which rdma_ack_cm_event gives back: 1, 0 if there
// is none, or a negative errno.
int shim_event(struct rdma_event_channel *channel, struct shim_event *out);

int shim_param(struct rdma_cm_id *id, int accept, uint32_t qpn, const void *data, int size,
	int reads_served, int reads_asked, int retries, int rnr_retries);

// shim_address copies the peer's socket address, 28 bytes at most.
void shim_address(struct rdma_cm_id *id, void *out);

struct shim_async { int kind; uint64_t element; };

int shim_async(struct ibv_context *context, struct shim_async *out);

#endif
