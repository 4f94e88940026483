package handshake

import (
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/viablk/viablk/internal/seal"
	"github.com/viablk/viablk/internal/wire"
)

// Join is the initiator's end of a connection that joins a session.
type Join struct {
	session *seal.Session
	sent    *wire.Auth
	fields  []byte
}

// NewJoin returns the end of a connection by its index, of a path with an
// epoch. The error is [seal.ErrCleared].
func NewJoin(s *seal.Session, conn uint16, epoch uint32) (*Join, error) {
	m := &wire.Auth{
		ID: 1, PathEpoch: epoch, Kind: wire.AuthJoin, Version: wire.AuthVersion,
		Conn: conn, Session: s.Name(),
	}
	randomize(&m.Nonce)
	j := &Join{session: s, sent: m, fields: m.AppendFields(nil)}
	var err error
	m.Proof, err = s.Proof(seal.Initiator, j.fields)
	return j, err
}

// Request returns the message to send.
func (j *Join) Request() *wire.Auth { return j.sent }

// Receive takes the answer. The error is [ErrRejected] if the target does not
// know the session, or does not prove that it does, and otherwise
// [ErrProtocol].
func (j *Join) Receive(in *wire.Auth) (*Result, error) {
	m := j.sent
	switch {
	case !in.Answer || in.Kind != wire.AuthJoin || in.ID != m.ID || in.PathEpoch != m.PathEpoch:
		return nil, fmt.Errorf("%w: the answer is of another message", ErrProtocol)
	case in.Status != wire.StatusOK:
		return nil, fmt.Errorf("%w: the target does not know the session (%v)", ErrRejected, in.Status)
	case !j.session.VerifyProof(&in.Proof, seal.Target, j.fields, m.Nonce[:], in.Nonce[:]):
		return nil, fmt.Errorf("%w: the target does not prove that it knows the session", ErrRejected)
	}
	return &Result{Session: j.session, Conn: m.Conn, Epoch: m.PathEpoch, nonceI: m.Nonce, nonceT: in.Nonce}, nil
}

// decoy is a session that no peer knows. A join of an unknown session is
// verified with it, so that it takes as long as one with a wrong proof.
var decoy = sync.OnceValues(func() (*seal.Session, error) {
	var ekm [seal.ExportSize]byte
	_, _ = rand.Read(ekm[:]) // it never fails
	return seal.NewSession(ekm[:], [seal.NonceSize]byte{}, [seal.NonceSize]byte{}, [seal.NameSize]byte{}, seal.Limits{})
})

// join takes a join and fills the answer.
func (h *Target) join(in, out *wire.Auth) error {
	session, err := decoy()
	if err != nil {
		return err
	}
	known := false
	if h.guard.Session != nil {
		if s := h.guard.Session(in.Session); s != nil {
			session, known = s, true
		}
	}
	fields := in.AppendFields(nil)
	if proved := session.VerifyProof(&in.Proof, seal.Initiator, fields); !proved || !known {
		return fmt.Errorf("%w: a connection joins with an unknown session or a wrong proof", ErrRejected)
	}
	proof, err := session.Proof(seal.Target, fields, in.Nonce[:], out.Nonce[:])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRejected, err)
	}
	out.Status, out.Session, out.Conn, out.Proof = wire.StatusOK, in.Session, in.Conn, proof
	h.result = &Result{Session: session, Conn: in.Conn, Epoch: in.PathEpoch, nonceI: in.Nonce, nonceT: out.Nonce}
	return nil
}
