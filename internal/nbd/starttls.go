package nbd

import (
	"errors"
	"fmt"
	"slices"
)

// Reasons not to give a client an export.
var (
	errTLSRequired = errors.New("TLS is required")
	errForbidden   = errors.New("the client's certificate is not on the export's list")
)

// plaintext reports whether the client has to start TLS before anything else.
func (n *negotiation) plaintext() bool { return n.tls.Required && n.secure == nil }

// startTLS answers STARTTLS. With success, everything that was agreed before is
// void: somebody on the way may have said it. What the client has sent behind the
// option already is the beginning of TLS or the end of the connection, because
// nothing is read ahead.
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
	n.dialect, n.contexts = simple, false
	return nil
}

// admits reports why the client does not get an export that others may.
func (n *negotiation) admits(e *Export) error {
	switch {
	case len(e.Clients) == 0:
		return nil
	case n.secure == nil:
		return errTLSRequired
	case slices.ContainsFunc(n.secure.names(), func(name string) bool { return slices.Contains(e.Clients, name) }):
		return nil
	}
	return errForbidden
}
