package main

import (
	"fmt"
	"log/slog"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/pki"
)

// newNBD returns the NBD server of the disks. Its certificates, if it has any,
// are among those that are read again.
func newNBD(c config.Config, disks []disk, again *certificates, log *slog.Logger) (*nbd.Server, error) {
	list, err := nbdExports(disks)
	if err != nil {
		return nil, err
	}
	exports, err := nbd.NewExports(list...)
	if err != nil {
		return nil, err
	}
	server := &nbd.Server{Exports: exports, Limits: nbdLimits(c.NBD), Log: log}
	if c.NBD.TLS == "off" {
		return server, nil
	}
	used, err := pki.NewServerCertificates(c.NBDCertificates(), c.NBD.TLSVerifyPeer)
	if err != nil {
		return nil, fmt.Errorf("certificates for TLS: %w", pkiError(err))
	}
	server.TLS = nbd.TLS{Config: used.Config(), Required: c.NBD.TLS == "require"}
	again.use(usedCertificates{c.NBDCertificates(), used.PrepareReload, server.VerifyClients})
	return server, nil
}

// nbdClient returns how the server of a URI is spoken to.
func nbdClient(u config.URI) (nbd.Client, error) {
	if !u.TLS {
		return nbd.Client{}, nil
	}
	c, err := pki.ClientConfig(u.Certificates, u.ServerName(), !u.Unverified)
	if err != nil {
		return nbd.Client{}, fmt.Errorf("%s: certificates for TLS: %w", u, pkiError(err))
	}
	return nbd.Client{TLS: c}, nil
}
