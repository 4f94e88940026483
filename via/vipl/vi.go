package vipl

import (
	"context"
	"sync"

	"github.com/viablk/viablk/via"
)

// VipCreateVi creates a VI; a nil queue stands for the work queue model. Its
// queues are 1,024 deep, or what the NIC allows: VIPL has no argument for it.
func VipCreateVi(nic *via.NIC, attrs *via.ViAttributes, sendCQ, recvCQ *via.CQ) (*via.VI, Return) {
	if nic == nil || attrs == nil {
		return nil, invalid
	}
	depth := min(1024, nic.Limits().MaxDescriptorsPerQueue)
	vi, err := nic.CreateVi(*attrs, via.ViConfig{SendCQ: sendCQ, RecvCQ: recvCQ, SendDepth: depth, RecvDepth: depth})
	return vi, code(err)
}

// VipDestroyVi destroys an idle VI with empty queues.
func VipDestroyVi(vi *via.VI) Return { return on(vi, vi.Destroy) }

// VipQueryVi returns what there is to know about a VI.
func VipQueryVi(vi *via.VI) (state via.State, attrs via.ViAttributes, sendQueueEmpty, recvQueueEmpty bool, r Return) {
	if vi.Destroyed() {
		return state, attrs, false, false, invalid
	}
	sendQueueEmpty, recvQueueEmpty = vi.QueuesEmpty()
	return vi.State(), vi.Attributes(), sendQueueEmpty, recvQueueEmpty, Success
}

// VipSetViAttributes changes the attributes of an idle VI.
func VipSetViAttributes(vi *via.VI, attrs *via.ViAttributes) Return {
	if attrs == nil {
		return invalid
	}
	return on(vi, func() error { return vi.SetAttributes(*attrs) })
}

// listening are the addresses that VipConnectWait waited at: they stay open
// until VipCloseNic, so that requests between two waits are kept for the next.
var (
	mu        sync.Mutex
	listening = make(map[waitAddress]*via.Listener) // guarded by mu
)

type waitAddress struct {
	nic  *via.NIC
	addr via.Address
}

func listen(at waitAddress) (l *via.Listener, err error) {
	mu.Lock()
	defer mu.Unlock()
	if l = listening[at]; l == nil {
		if l, err = at.nic.Listen(at.addr); err == nil {
			listening[at] = l
		}
	}
	return l, err
}

// VipConnectWait waits for a request at a local address.
func VipConnectWait(nic *via.NIC, local *via.Address, timeout uint32) (remote via.Address, attrs via.ViAttributes, conn *via.ConnRequest, r Return) {
	if nic == nil || local == nil {
		return remote, attrs, nil, invalid
	}
	l, err := listen(waitAddress{nic, *local})
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), duration(timeout))
		defer cancel()
		conn, err = l.Wait(ctx)
	}
	if err != nil {
		return remote, attrs, nil, code(err)
	}
	return via.Address{Host: conn.RemoteHost()}, conn.Attributes(), conn, Success
}

// VipConnectAccept connects an idle VI to the requester.
func VipConnectAccept(conn *via.ConnRequest, vi *via.VI) Return {
	return on(conn, func() error { return conn.Accept(context.Background(), vi) })
}

// VipConnectReject refuses a request.
func VipConnectReject(conn *via.ConnRequest) Return { return on(conn, conn.Reject) }

// VipConnectRequest connects an idle VI to the remote address; local is not
// looked at.
func VipConnectRequest(vi *via.VI, local, remote *via.Address, timeout uint32) (via.ViAttributes, Return) {
	if local == nil || remote == nil || timeout == 0 {
		return via.ViAttributes{}, invalid
	}
	ctx, cancel := context.WithTimeout(context.Background(), duration(timeout))
	defer cancel()
	return of(vi, func() (via.ViAttributes, error) { return vi.Connect(ctx, *remote) })
}

// VipDisconnect ends a connection or an attempt at one.
func VipDisconnect(vi *via.VI) Return { return on(vi, vi.Disconnect) }

// VipConnectPeerRequest begins to connect to a peer that does the same.
func VipConnectPeerRequest(vi *via.VI, local, remote *via.Address, timeout uint32) Return {
	if local == nil || remote == nil {
		return invalid
	}
	return on(vi, func() error { return vi.PeerRequest(*local, *remote, duration(timeout)) })
}

// VipConnectPeerDone returns what came of a peer request.
func VipConnectPeerDone(vi *via.VI) (via.ViAttributes, Return) { return of(vi, vi.PeerDone) }

// VipConnectPeerWait waits for what comes of a peer request.
func VipConnectPeerWait(vi *via.VI) (via.ViAttributes, Return) { return of(vi, vi.PeerWait) }
