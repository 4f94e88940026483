package nbd

import (
	"errors"
	"fmt"
)

// errTLSRequired is why a client gets no export in the clear.
var errTLSRequired = errors.New("TLS is required")

// needsTLS reports whether the client has to start TLS before anything else.
func (n *negotiation) needsTLS() bool { return n.tls.Required && n.secure == nil }

// startTLS answers STARTTLS. With success, everything that was agreed before is
// void: an attacker on the path may have sent it. Bytes that the client has
// sent behind the option are the beginning of TLS or the end of the
// connection, because nothing is read ahead.
func (n *negotiation) startTLS(data []byte) error {
	switch {
	case n.tls.Config == nil:
		return n.refuse(optStartTLS, repErrUnsupported, "this server has no certificate")
	case len(data) != 0:
		return n.refuse(optStartTLS, repErrInvalid, "STARTTLS takes no data")
	case n.secure != nil:
		return n.refuse(optStartTLS, repErrInvalid, "TLS is up already")
	}
	if err := n.answer(optStartTLS, repAck, nil); err != nil {
		return err
	}
	s := newSecure(n.conn, n.tls.Config)
	if err := s.Handshake(); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	n.conn, n.secure = s, s
	n.identity = s.identity(n.identity)
	n.replyMode, n.contexts = simple, false
	return nil
}
