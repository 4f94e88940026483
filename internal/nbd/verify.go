package nbd

import (
	"maps"
	"slices"

	"github.com/viablk/viablk/internal/contain"
)

// VerifyClients verifies the certificates of connected clients again, and ends
// the connections of those that fail: the check of TLS.Config may have changed.
// It returns how many it ended.
func (s *Server) VerifyClients() (ended int) {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range conns {
		err := contain.Call(s.log(), "panic: a certificate is not verified", c.verify)
		if err != nil && !c.stopped.Load() {
			c.logCaused(s.log(), "connection ended: its certificate is not valid any more", "event", "certificate_refused", "client", c.remote, "error", err)
			c.stop()
			ended++
		}
	}
	return ended
}

// setSecure makes TLS, or nil, that of the connection, and verifies the client
// again: VerifyClients does not find connections during their handshake.
func (c *conn) setSecure(s *secure) error {
	c.mu.Lock()
	c.secure = s
	c.mu.Unlock()
	return c.verify()
}

// verify checks the certificate of the client.
func (c *conn) verify() error {
	c.mu.Lock()
	s := c.secure
	c.mu.Unlock()
	if s == nil || !s.verified || c.server.TLS.Config.VerifyConnection == nil {
		return nil
	}
	return c.server.TLS.Config.VerifyConnection(s.ConnectionState())
}
