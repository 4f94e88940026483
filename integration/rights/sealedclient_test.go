package rights

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"syscall"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// sealedClient is an initiator with a certificate: each question is a session.
type sealedClient struct {
	initiator.Config
}

func newSealedClient(nic *via.NIC, host string, certificate *tls.Config) *sealedClient {
	security := func() (handshake.Config, error) { return handshake.Config{TLS: certificate}, nil }
	return &sealedClient{initiator.Config{NIC: nic, Host: host, Security: security}}
}

// Close implements [client].
func (s *sealedClient) Close() error { return nil }

// list implements [client].
func (s *sealedClient) list() (names []string, err error) {
	infos, err := initiator.Discover(context.Background(), s.Config)
	for _, i := range infos {
		names = append(names, i.Name)
	}
	return names, err
}

// open implements [client].
func (s *sealedClient) open(name string, m mode) (outcome, error) {
	cfg := s.Config
	cfg.Export, cfg.ReadOnly, cfg.Exclusive = name, !m.writes, m.mode == wire.OpenExclusive
	d, err := initiator.Dial(context.Background(), cfg)
	switch {
	case err == nil:
		return granted, d.Close()
	case errors.Is(err, syscall.EPERM):
		return refused, nil
	case errors.Is(err, syscall.ENOENT):
		return hidden, nil
	}
	return 0, err
}

// refusal implements [client].
func (s *sealedClient) refusal(string) ([]byte, error) {
	return nil, fmt.Errorf("answers are sealed: %w", errors.ErrUnsupported)
}
