package nbd

import (
	"net"
	"strconv"
	"strings"

	"github.com/mdlayher/vsock"
)

// clientIDOf returns who a connection counts for, as text: an IPv4 address, the
// first 64 bits of an IPv6 address, of which one host has all the others, or
// the user at the other end of a UNIX socket. Of other networks it is the
// address without its port.
func clientIDOf(nc net.Conn) string {
	switch a := nc.RemoteAddr().(type) {
	case *net.TCPAddr:
		ip := a.AddrPort().Addr().Unmap()
		if ip.Is4() || ip.IsLinkLocalUnicast() { // all neighbours have the same 64 bits
			return ip.String()
		}
		if network, err := ip.Prefix(64); err == nil {
			return network.String()
		}
		return ip.String()
	case *net.UnixAddr:
		return userOf(nc)
	default:
		address := a.String()
		if port := strings.LastIndexByte(address, ':'); port >= 0 {
			address = address[:port]
		}
		return a.Network() + " " + address
	}
}

// isLocal reports whether the client of a connection is a process of this host.
func isLocal(nc net.Conn) bool {
	switch a := nc.RemoteAddr().(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	case VsockAddr:
		return a.CID == vsock.Local
	default:
		return false
	}
}

// userOf returns the user who connected a UNIX socket.
func userOf(nc net.Conn) string {
	peer, err := peerOf(nc)
	if err != nil {
		return "unknown user"
	}
	return "user " + strconv.FormatUint(uint64(peer.Uid), 10)
}
