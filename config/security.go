package config

import "cmp"

// The values of [Target.Security].
const (
	SecurityAuto    = "auto"
	SecurityRequire = "require"
	SecurityOff     = "off"
)

// Seals reports whether initiators at a URI of the target show certificates,
// and have sealed sessions.
func (c Config) Seals(u URI) bool {
	switch {
	case !u.Sealable():
		return false
	case c.Target.Security == SecurityRequire:
		return true
	}
	return c.Target.Security == SecurityAuto && !u.Local() && c.VIACertificates() != ""
}

// VIACertificates returns the folder of the certificates that the target shows
// to initiators, or "".
func (c Config) VIACertificates() string {
	return cmp.Or(c.Target.Certificates, c.NBD.TLSCertificates)
}

// NBDCertificates returns the folder of the certificates of NBD serving, or "".
func (c Config) NBDCertificates() string {
	return cmp.Or(c.NBD.TLSCertificates, c.Target.Certificates)
}

// Remote returns the remote disk with the certificates to reach it.
func (a Attach) Remote() (URI, error) {
	u, err := ParseURI(a.URI)
	return u.With(a.Certificates, a.TargetName), err
}

// With returns the URI with a folder of certificates and the name of the server
// where it can have them and does not name others.
func (u URI) With(certificates, name string) URI {
	if u.TLS || u.Sealable() {
		u.Certificates = cmp.Or(u.Certificates, certificates)
		u.Hostname = cmp.Or(u.Hostname, name)
	}
	return u
}

// validateSecurity complains about sealed sessions that cannot be.
func (c Config) validateSecurity(bad *complaints) {
	sealed, where := c.firstVIA(c.Seals)
	if sealed != "" && c.VIACertificates() == "" {
		bad.unsafe("target.security", "%s needs certificates for %s (%s): set target.certificates to their folder; viablk pki makes one", c.Target.Security, sealed, where)
	}
	if sealed != "" && c.Target.CopyMode == "zerocopy" {
		bad.unsafe("target.copy_mode", "zerocopy leaves out the copy in which %s (%s) encrypts: set it to auto or bounce, or target.security to off", sealed, where)
	}
	if u, err := c.Attach.Remote(); err == nil && u.Sealable() && u.Certificates != "" && c.Attach.CopyMode == "zerocopy" {
		bad.unsafe("attach.copy_mode", "zerocopy leaves out the copy in which the session with %s decrypts: set it to auto or bounce, or leave out the certificates", u.Peer())
	}
}

// Access says who gets the disks of the target at a URI that it listens at.
func (c Config) Access(u URI) string {
	switch {
	case c.Seals(u):
		return "certificates of the authority in " + c.VIACertificates()
	case !u.VIA() && c.NBD.TLS == "require" && c.NBD.TLSVerifyPeer:
		return "certificates of the authority in " + c.NBDCertificates()
	case u.Socket != "":
		return "users who may open the socket"
	case u.Local():
		return "users of this host"
	}
	return "any host that reaches it"
}
