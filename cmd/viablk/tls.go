package main

import (
	"fmt"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/pki"
)

// nbdTLS returns how NBD is served under TLS.
func nbdTLS(c config.NBD) (nbd.TLS, error) {
	if c.TLS == "off" {
		return nbd.TLS{}, nil
	}
	server, err := pki.ServerConfig(c.TLSCertificates, c.TLSVerifyPeer)
	if err != nil {
		return nbd.TLS{}, fmt.Errorf("certificates for TLS: %w", err)
	}
	return nbd.TLS{Config: server, Required: c.TLS == "require"}, nil
}

// nbdClient returns how the server of a URI is spoken to.
func nbdClient(u config.URI) (nbd.Client, error) {
	if !u.TLS {
		return nbd.Client{}, nil
	}
	c, err := pki.ClientConfig(u.Certificates, u.ServerName(), !u.Unverified)
	if err != nil {
		return nbd.Client{}, fmt.Errorf("%s: certificates for TLS: %w", u, err)
	}
	return nbd.Client{TLS: c}, nil
}
