package config

import "fmt"

// proofs are what tells the clients of a listener apart.
type proofs struct {
	certificates bool
	users        bool // the kernel reports their users
}

// proofsAt returns what tells clients apart at a URI to listen on.
func (c Config) proofsAt(u URI) proofs {
	if u.VIA() {
		return proofs{certificates: c.Seals(u), users: u.Provider == "shm"}
	}
	return proofs{certificates: c.NBD.TLS != "off" && c.NBD.TLSVerifyPeer, users: u.Socket != ""}
}

// CheckClients reports why the lists of clients of an export cannot be kept at
// a listener. A listener that proves nothing of its clients would give the
// export to none of them, and one that knows users alone to none with a
// certificate: the administrator meant something else.
func (c Config) CheckClients(x Export, u URI) error {
	r, err := x.Rights()
	has := c.proofsAt(u)
	switch {
	case err != nil || !r.Certificates() && !r.Users():
		return nil // another complaint, or no client to tell apart
	case !has.certificates && !has.users:
		return fmt.Errorf("clients of export %q cannot be told apart at %s: remove its clients, or that listener", x.Name, u)
	case !has.certificates && !r.Users():
		return fmt.Errorf("clients of export %q have certificates, and those at %s are known as users: add user:NAME to its clients, or remove that listener", x.Name, u)
	}
	return nil
}

// validateAccess complains about lists of clients that the listeners cannot
// keep.
func (c Config) validateAccess(bad *complaints) {
	for i, x := range c.Target.Exports {
		c.checkClients(bad, fmt.Sprintf("target.exports[%d]", i), x, c.Target.Listen)
	}
	attached := c.Attach.Over(Export{})
	if u, err := ParseURI(c.Attach.NBD); err == nil {
		attached.Name = u.Export
	}
	var listen []string
	if c.Attach.NBD != "" {
		listen = []string{c.Attach.NBD}
	}
	c.checkClients(bad, "attach.clients", attached, listen)
	overVIA, where := c.firstVIA(func(u URI) bool { return u.Provider != "shm" && !c.Seals(u) })
	if overVIA != "" && c.NBD.TLS == "require" && !c.Insecure {
		bad.unsafe("nbd.tls", "require does not hold for initiators, who come in at %s (%s) without certificates: set target.security to require, remove that listener, or accept that with --insecure", overVIA, where)
	}
}

// checkClients complains about the lists of clients of an export, which key
// names.
func (c Config) checkClients(bad *complaints, key string, x Export, listen []string) {
	r, err := x.Rights()
	if err != nil {
		return // another complaint
	}
	if r.Certificates() && !c.hasCertificates() {
		bad.add(key, "clients are known by their certificates: set nbd.tls to on or require, and nbd.tls_verify_peer, or target.security to require, or list user:NAME for local users")
		return
	}
	for _, text := range listen {
		u, err := ParseURI(text)
		if err != nil {
			continue // another complaint
		}
		if err := c.CheckClients(x, u); err != nil {
			bad.unsafe(key, "%v", err)
			return
		}
	}
}

// hasCertificates reports whether any client shows a certificate.
func (c Config) hasCertificates() bool {
	sealed, _ := c.firstVIA(c.Seals)
	return sealed != "" || c.NBD.TLS != "off" && c.NBD.TLSVerifyPeer
}

// firstVIA returns the first URI for initiators for which is holds, and its
// key.
func (c Config) firstVIA(is func(URI) bool) (uri, key string) {
	for i, listen := range c.Target.Listen {
		if u, err := ParseURI(listen); err == nil && u.VIA() && is(u) {
			return listen, fmt.Sprintf("target.listen[%d]", i)
		}
	}
	return "", ""
}

// Guests returns the local users that lists of clients name, and the names of
// users that this host does not have.
func Guests(exports []Export) (uids []uint32, unknown []string) {
	for _, x := range exports {
		r, err := x.Rights()
		if err != nil {
			continue // Validate complains
		}
		some, missing := r.UIDs()
		uids, unknown = append(uids, some...), append(unknown, missing...)
	}
	return uids, unknown
}
