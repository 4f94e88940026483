package config

import (
	"errors"
	"fmt"
	"strconv"
)

// The context IDs of AF_VSOCK that mean something everywhere.
const (
	cidLocal = "1"          // this machine
	cidHost  = "2"          // the machine that virtual machines run on
	cidAny   = "4294967295" // only to listen on
)

// parseCID reads the authority of a URI for AF_VSOCK, CID[:PORT], as libnbd
// does: none is the host.
func (u *URI) parseCID(authority string) error {
	host, port, err := splitPort(authority)
	if err != nil {
		return err
	}
	u.Host, u.Port = cidHost, u.defaultPort()
	if host != "" {
		cid, err := strconv.ParseUint(host, 10, 32)
		if err != nil || host[0] == '+' {
			return fmt.Errorf("%q is not a CID, the number of a virtual machine: 2 is the host, and 1 this machine", host)
		}
		u.Host = strconv.FormatUint(cid, 10)
	}
	return u.parsePort(port)
}

// ListenHost returns the host to listen at. A URI for AF_VSOCK with the host's
// CID, as it is without one, means all that this machine has: so it is right
// for those who connect to it from a virtual machine.
func (u URI) ListenHost() string {
	if u.Vsock && u.Host == cidHost {
		return cidAny
	}
	return u.Host
}

// checkVsockPort reports why no client would find a listener at the URI: the
// kernel chooses a port that a URI cannot name.
func (u URI) checkVsockPort() error {
	if u.Vsock && u.Port == 0 {
		return fmt.Errorf("port 0: clients have to know the port of %s: leave it out for %d", u.scheme(), PortNBD)
	}
	return nil
}

// checkCID reports why the CID has no server.
func (u URI) checkCID() error {
	switch {
	case !u.Vsock:
		return nil
	case u.Host == cidAny:
		return errors.New("this CID is only good to listen on: name the machine")
	case u.Host == "0":
		return errors.New("CID 0 is reserved: 2 is the host, and 1 this machine")
	}
	return nil
}
