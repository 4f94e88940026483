//go:build verbs && cgo

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

int shim_post(struct ibv_qp *qp, const struct shim_wr *recv, int recvs,
	const struct shim_wr *send, int sends, const struct ibv_sge *sge,
	int *received, int *sent)
{
	struct ibv_recv_wr r[SHIM_BATCH], *bad_recv = NULL;
	struct ibv_send_wr s[SHIM_BATCH], *bad_send = NULL;
	int err = 0;

	*received = *sent = 0;
	for (int i = 0; i < recvs; i++) {
		r[i].wr_id = recv[i].id;
		r[i].sg_list = (struct ibv_sge *)sge + recv[i].first_sge;
		r[i].num_sge = recv[i].sges;
		r[i].next = i + 1 < recvs ? &r[i + 1] : NULL;
	}
	if (recvs > 0) {
		err = ibv_post_recv(qp, r, &bad_recv);
		*received = err ? (int)(bad_recv - r) : recvs;
	}
	if (err || sends == 0)
		return err;
	for (int i = 0; i < sends; i++) {
		static const enum ibv_wr_opcode plain[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
		static const enum ibv_wr_opcode with_imm[] = { IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ };
		int imm = send[i].flags & SHIM_IMMEDIATE;

		memset(&s[i], 0, sizeof s[i]);
		s[i].wr_id = send[i].id;
		s[i].sg_list = (struct ibv_sge *)sge + send[i].first_sge;
		s[i].num_sge = send[i].sges;
		s[i].opcode = imm ? with_imm[send[i].op] : plain[send[i].op];
		s[i].imm_data = htonl(send[i].immediate);
		s[i].send_flags = (send[i].flags & SHIM_SIGNAL ? IBV_SEND_SIGNALED : 0) |
			(send[i].flags & SHIM_INLINE ? IBV_SEND_INLINE : 0);
		s[i].wr.rdma.remote_addr = send[i].remote_addr;
		s[i].wr.rdma.rkey = send[i].rkey;
		s[i].next = i + 1 < sends ? &s[i + 1] : NULL;
	}
	err = ibv_post_send(qp, s, &bad_send);
	*sent = err ? (int)(bad_send - s) : sends;
	return err;
}

int shim_poll(struct ibv_cq *cq, struct shim_wc *wc, int n)
{
	struct ibv_wc c[SHIM_BATCH];

	n = ibv_poll_cq(cq, n < SHIM_BATCH ? n : SHIM_BATCH, c);
	for (int i = 0; i < n; i++) {
		wc[i].id = c[i].wr_id;
		wc[i].status = c[i].status;
		wc[i].length = c[i].byte_len;
		wc[i].has_immediate = c[i].status == IBV_WC_SUCCESS && (c[i].wc_flags & IBV_WC_WITH_IMM);
		wc[i].by_write = c[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM;
		wc[i].immediate = wc[i].has_immediate ? ntohl(c[i].imm_data) : 0;
	}
	return n;
}

int shim_take(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_cq *from;
	void *context;
	int events = 0;

	while (ibv_get_cq_event(channel, &from, &context) == 0)
		events++;
	if (events)
		ibv_ack_cq_events(cq, events);
	return events;
}

int shim_arm(struct ibv_cq *cq, struct ibv_comp_channel *channel, struct shim_wc *wc, int n, int *events)
{
	*events = shim_take(cq, channel);
	if (ibv_req_notify_cq(cq, 0))
		return -1;
	return shim_poll(cq, wc, n);
}

int shim_limits(struct ibv_context *context, int port, struct shim_limits *out)
{
	struct ibv_device_attr_ex a;
	struct ibv_port_attr p;
	const uint32_t need = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ;
	int err;

	memset(&a, 0, sizeof a);
	memset(out, 0, sizeof *out);
	if ((err = ibv_query_device_ex(context, NULL, &a)))
		return err;
	if ((err = ibv_query_port(context, port, &p)))
		return err;
	out->guid = a.orig_attr.node_guid;
	out->max_mr_size = a.orig_attr.max_mr_size;
	out->max_qp = a.orig_attr.max_qp;
	out->max_qp_wr = a.orig_attr.max_qp_wr;
	out->max_sge = a.orig_attr.max_sge < a.orig_attr.max_sge_rd || a.orig_attr.max_sge_rd == 0
		? a.orig_attr.max_sge : a.orig_attr.max_sge_rd;
	out->max_cq = a.orig_attr.max_cq;
	out->max_cqe = a.orig_attr.max_cqe;
	out->max_mr = a.orig_attr.max_mr;
	out->max_pd = a.orig_attr.max_pd;
	out->reads = a.orig_attr.max_qp_rd_atom < a.orig_attr.max_qp_init_rd_atom
		? a.orig_attr.max_qp_rd_atom : a.orig_attr.max_qp_init_rd_atom;
	out->on_demand = (a.odp_caps.general_caps & IBV_ODP_SUPPORT) &&
		(a.odp_caps.per_transport_caps.rc_odp_caps & need) == need;
	out->max_message = p.max_msg_sz;
	out->mtu = 128u << p.active_mtu;
	out->port = port;
	out->state = p.state;
	out->link_layer = p.link_layer;
	return 0;
}

struct ibv_mr *shim_register(struct ibv_pd *pd, void *addr, size_t length, int write, int read, int on_demand)
{
	int access = (write ? IBV_ACCESS_REMOTE_WRITE : 0) | (read ? IBV_ACCESS_REMOTE_READ : 0) |
		(on_demand ? IBV_ACCESS_ON_DEMAND : 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, addr, length, access | IBV_ACCESS_LOCAL_WRITE);

	if (!mr && !write && (errno == EFAULT || errno == EACCES))
		mr = ibv_reg_mr(pd, addr, length, access); // memory that is mapped to be read
	return mr;
}

struct ibv_qp *shim_qp(struct ibv_pd *pd, struct ibv_cq *send, struct ibv_cq *recv,
	int send_depth, int recv_depth, int sges, int *inline_size)
{
	struct ibv_qp_init_attr a;
	struct ibv_qp *qp;

	memset(&a, 0, sizeof a);
	a.send_cq = send;
	a.recv_cq = recv;
	a.qp_type = IBV_QPT_RC;
	a.cap.max_send_wr = send_depth;
	a.cap.max_recv_wr = recv_depth;
	a.cap.max_send_sge = a.cap.max_recv_sge = sges;
	a.cap.max_inline_data = *inline_size;
	qp = ibv_create_qp(pd, &a);
	if (!qp && (errno == EINVAL || errno == ENOMEM)) { // a device may have less room for inline data
		a.cap.max_send_wr = send_depth;
		a.cap.max_recv_wr = recv_depth;
		a.cap.max_send_sge = a.cap.max_recv_sge = sges;
		a.cap.max_inline_data = 0;
		qp = ibv_create_qp(pd, &a);
	}
	*inline_size = a.cap.max_inline_data;
	return qp;
}

int shim_connect(struct ibv_qp *qp, struct rdma_cm_id *id, const struct shim_terms *t)
{
	struct ibv_qp_attr a;
	int mask, err;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	if (rdma_init_qp_attr(id, &a, &mask))
		return errno;
	a.qp_access_flags = (t->write ? IBV_ACCESS_REMOTE_WRITE : 0) | (t->read ? IBV_ACCESS_REMOTE_READ : 0);
	if ((err = ibv_modify_qp(qp, &a, mask)))
		return err;
	a.qp_state = IBV_QPS_RTR;
	if (rdma_init_qp_attr(id, &a, &mask))
		return errno;
	a.max_dest_rd_atomic = t->reads_served;
	a.min_rnr_timer = t->rnr_timer;
	mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if ((err = ibv_modify_qp(qp, &a, mask)))
		return err;
	a.qp_state = IBV_QPS_RTS;
	if (rdma_init_qp_attr(id, &a, &mask))
		return errno;
	a.max_rd_atomic = t->reads_asked;
	a.rnr_retry = t->rnr_retries;
	a.retry_cnt = t->retries;
	a.timeout = t->timeout;
	mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RNR_RETRY | IBV_QP_RETRY_CNT | IBV_QP_TIMEOUT;
	return ibv_modify_qp(qp, &a, mask);
}

int shim_break(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_ERR;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

int shim_state(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;

	return ibv_query_qp(qp, &a, IBV_QP_STATE, &i) ? -1 : (int)a.qp_state;
}

int shim_event(struct rdma_event_channel *channel, struct shim_event *out)
{
	struct rdma_cm_event *e;
	const struct rdma_conn_param *p;

	if (rdma_get_cm_event(channel, &e))
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	p = &e->param.conn;
	out->event = e;
	out->id = e->id;
	out->listener = e->listen_id;
	out->kind = e->event;
	out->status = e->status;
	out->reads_served = p->responder_resources;
	out->reads_asked = p->initiator_depth;
	out->rnr_retries = p->rnr_retry_count;
	out->qpn = p->qp_num;
	out->private_size = p->private_data ? p->private_data_len : 0;
	if (out->private_size)
		memcpy(out->private_data, p->private_data, out->private_size);
	return 1;
}

int shim_param(struct rdma_cm_id *id, int accept, uint32_t qpn, const void *data, int size,
	int reads_served, int reads_asked, int retries, int rnr_retries)
{
	struct rdma_conn_param p;

	memset(&p, 0, sizeof p);
	p.private_data = data;
	p.private_data_len = size;
	p.responder_resources = reads_served;
	p.initiator_depth = reads_asked;
	p.retry_count = retries;
	p.rnr_retry_count = rnr_retries;
	p.qp_num = qpn;
	return (accept ? rdma_accept(id, &p) : rdma_connect(id, &p)) ? errno : 0;
}

void shim_address(struct rdma_cm_id *id, void *out)
{
	memcpy(out, rdma_get_peer_addr(id), sizeof(struct sockaddr_in6));
}

int shim_async(struct ibv_context *context, struct shim_async *out)
{
	struct ibv_async_event e;

	if (ibv_get_async_event(context, &e))
		return errno == EAGAIN || errno == EINTR ? 0 : -errno;
	out->kind = e.event_type;
	out->element = 0;
	switch (e.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		out->element = (uintptr_t)e.element.qp;
		break;
	case IBV_EVENT_CQ_ERR:
		out->element = (uintptr_t)e.element.cq;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
		out->element = e.element.port_num;
		break;
	default:
		break;
	}
	ibv_ack_async_event(&e);
	return 1;
}
