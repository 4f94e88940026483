package nbd

import (
	"errors"
	"fmt"
	"slices"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
)

// granted is an export that a client may use.
type granted struct {
	*Export
	readOnly bool // for this client
}

// clientInfo describes the export as the client may use it.
func (g granted) clientInfo(l *Limits) block.Info {
	i := g.Export.clientInfo(l)
	if g.readOnly {
		i.Features = readOnlyFeatures(i.Features)
	}
	return i
}

// identity returns who the client is with the names in the certificate that it
// proved to be its own, if a trusted authority signed that.
func (s *secure) identity(i access.Identity) access.Identity {
	state := s.ConnectionState()
	if !s.verified || len(state.PeerCertificates) == 0 {
		return i
	}
	return i.WithCertificate(state.PeerCertificates[0])
}

// find looks an export up by name. A hidden export and none are the same to the
// client, in the answer and in the work it takes; the log says which it is.
func (n *negotiation) find(name string) (granted, error) {
	if err := validName(name, n.limits.NameBytes); err != nil {
		return granted{}, err
	}
	rights := access.Unlisted
	e, err := n.exports.Export(name)
	switch {
	case err == nil:
		rights = e.Rights
	case !errors.Is(err, ErrUnknownExport):
		return granted{}, fmt.Errorf("export %q: %w", name, err)
	}
	switch access.Admits(n.identity, rights, access.ReadWrite) {
	case access.Granted:
		return granted{Export: e}, nil
	case access.MayRead:
		return granted{Export: e, readOnly: true}, nil
	}
	reason := "the client is not on the export's list"
	if err != nil {
		reason = "there is no such export"
	}
	n.logRefused(name, n.identity, reason)
	return granted{}, fmt.Errorf("export %q: %w", name, n.hidden())
}

// hidden returns the answer of an export that the client does not learn of. In
// the clear it names TLS if any export is for clients with certificates.
func (n *negotiation) hidden() error {
	if n.secure == nil && n.tls.Config != nil {
		list := n.exports.List()
		if slices.ContainsFunc(list, func(e Export) bool { return e.Rights.Certificates() }) {
			return errTLSRequired
		}
	}
	return ErrUnknownExport
}

// visible returns the exports that the client may open.
func (n *negotiation) visible() []Export {
	all := n.exports.List()
	list := all[:0]
	for i := range all {
		if access.Admits(n.identity, all[i].Rights, access.List) == access.Granted {
			list = append(list, all[i])
		}
	}
	return list
}
