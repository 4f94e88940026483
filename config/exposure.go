package config

import (
	"fmt"
	"strings"
)

// Local reports whether a listener at the URI has clients of this host alone.
func (u URI) Local() bool {
	switch {
	case u.Socket != "":
		return true
	case u.Vsock:
		return u.Host == cidLocal
	case u.Provider == "verbs" || u.Frames != "":
		return false // the kernel's rules for loopback addresses do not apply
	}
	return strings.EqualFold(u.Host, "localhost") || u.address().Unmap().IsLoopback()
}

// InClear reports whether what an NBD client and the server of the URI say
// crosses a network without TLS. AF_VSOCK is none: it joins a virtual machine
// and its host, who owns the machine's memory.
func (u URI) InClear() bool { return !u.VIA() && !u.TLS && !u.Vsock && !u.Local() }

// validateExposure complains about listeners at which other hosts would get
// the disks without authentication.
func (c Config) validateExposure(bad *complaints) {
	for i, listen := range c.Target.Listen {
		c.checkExposure(bad, fmt.Sprintf("target.listen[%d]", i), listen, URI.checkListen)
	}
	if c.Attach.NBD != "" {
		c.checkExposure(bad, "attach.nbd", c.Attach.NBD, URI.checkNBD)
	}
}

// checkExposure complains about one listener, which key names, unless there is
// a complaint about it from check.
func (c Config) checkExposure(bad *complaints, key, listen string, check func(URI, NBD) error) {
	u, err := ParseURI(listen)
	if err != nil || check(u, c.NBD) != nil || u.Local() || c.Insecure {
		return
	}
	switch {
	case c.Seals(u):
	case u.VIA():
		bad.unsafe(key, "any host that reaches %s could read and write the disks: set target.certificates to a folder that viablk pki made and target.security to auto or require, %s", u, accept)
	case c.NBD.TLS != "require":
		bad.unsafe(key, "any host that reaches %s could read and write the disks: set nbd.tls to require, %s", u, accept)
	}
}

// accept ends the complaints about listeners that other hosts reach.
const accept = "listen at a loopback address or a unix socket, or accept that with --insecure"
