package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// The default ports. The second is a service number of the RDMA connection
// manager's port space, not a UDP port.
const (
	PortNBD = 10809
	PortVIA = 10810
)

// maximumSocketPath is the longest unix socket path in bytes.
const maximumSocketPath = 107

// maximumURI bounds a URI: every byte of the longest export name may be
// percent-encoded.
const maximumURI = 3*(maximumExportName+maximumSocketPath) + 512

// URI is a parsed endpoint with an export:
//
//	nbd://host[:10809]/export            NBD over TCP
//	nbd+unix:///export?socket=PATH       NBD over a unix socket
//	nbds://…, nbds+unix://…              the same with TLS
//	via+shm:///export?socket=PATH        VIA over shared memory
//	via+roce://host[:10810]/export       VIA over RoCEv2
//	via+PROVIDER://host[:10810]/export   VIA over any other provider
//
// An empty host means localhost. The export is the path without its first
// slash, percent-decoded; it may be empty. URI values are comparable.
type URI struct {
	// Provider is the VIA provider; empty for NBD.
	Provider string

	// TLS asks for encryption. This build parses it and has none.
	TLS bool

	// Socket is the path of a unix socket; empty if the endpoint is a host.
	Socket string

	// Host is a name, an IPv4 or an IPv6 address, the latter without brackets. It
	// is empty only if Socket is not.
	Host string

	// Port is zero for a unix socket, or to listen on a port that the system
	// chooses.
	Port uint16

	// Export is the name of the export.
	Export string
}

// VIA reports whether the endpoint is reached through VIA rather than NBD.
func (u URI) VIA() bool { return u.Provider != "" }

// scheme returns what stands before the colon.
func (u URI) scheme() string {
	switch {
	case u.VIA():
		return "via+" + u.Provider
	case u.TLS && u.Socket != "":
		return "nbds+unix"
	case u.TLS:
		return "nbds"
	case u.Socket != "":
		return "nbd+unix"
	default:
		return "nbd"
	}
}

// defaultPort returns the port that a URI without one means.
func (u URI) defaultPort() uint16 {
	if u.VIA() {
		return PortVIA
	}
	return PortNBD
}

// Network returns the network and address to dial or listen on, as package net
// names them: unix and a path, or tcp and host:port.
func (u URI) Network() (network, address string) {
	if u.Socket != "" {
		return "unix", u.Socket
	}
	host := u.Host
	if strings.ContainsRune(host, ':') {
		host = "[" + host + "]"
	}
	return "tcp", host + ":" + strconv.Itoa(int(u.Port))
}

// String returns the URI in a form that ParseURI reads back to the same value.
func (u URI) String() string {
	var b strings.Builder
	b.WriteString(u.scheme() + "://")
	if u.Socket == "" {
		host := u.Host
		if strings.ContainsRune(host, ':') {
			host = "[" + strings.ReplaceAll(host, "%", "%25") + "]"
		}
		b.WriteString(host)
		if u.Port != u.defaultPort() {
			b.WriteString(":" + strconv.Itoa(int(u.Port)))
		}
	}
	b.WriteString("/" + escape(u.Export))
	if u.Socket != "" {
		b.WriteString("?socket=" + escape(u.Socket))
	}
	return b.String()
}

// escape percent-encodes everything but unreserved characters and the slash, so
// that the result also stands unquoted in a shell.
func escape(s string) string {
	const upper = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			strings.IndexByte("-._~/", c) >= 0:
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', upper[c>>4], upper[c&15]})
		}
	}
	return b.String()
}

// ParseURI reads a URI. It knows every scheme of [URI]; whether this build has
// the provider, or TLS, is the caller's question.
func ParseURI(s string) (URI, error) {
	u, err := parseURI(s)
	if err != nil {
		if len(s) > 120 {
			s = s[:120] + "…"
		}
		return URI{}, fmt.Errorf("%q: %w", s, err)
	}
	return u, nil
}

func parseURI(s string) (URI, error) {
	if len(s) > maximumURI {
		return URI{}, fmt.Errorf("the URI is longer than %d bytes", maximumURI)
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return URI{}, errors.New("the URI contains a space or a control character: percent-encode it")
		}
	}
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return URI{}, errors.New("this is no URI: write nbd://HOST/EXPORT, nbd+unix:///EXPORT?socket=PATH or via+PROVIDER://…")
	}
	if strings.ContainsRune(rest, '#') {
		return URI{}, errors.New("a URI here has no fragment: write # as %23")
	}
	u, local, err := parseScheme(strings.ToLower(scheme))
	if err != nil {
		return URI{}, err
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	if err := u.parseQuery(query, local); err != nil {
		return URI{}, err
	}
	if err := u.parseAuthority(authority, local); err != nil {
		return URI{}, err
	}
	if u.Export, err = url.PathUnescape(path); err != nil {
		return URI{}, fmt.Errorf("the export name is not percent-encoded right: %w", err)
	}
	return u, validateExportName(u.Export)
}

// parseScheme returns a URI with what the scheme says, and whether the endpoint
// is a unix socket.
func parseScheme(scheme string) (u URI, local bool, err error) {
	switch scheme {
	case "nbd":
		return URI{}, false, nil
	case "nbd+unix":
		return URI{}, true, nil
	case "nbds":
		return URI{TLS: true}, false, nil
	case "nbds+unix":
		return URI{TLS: true}, true, nil
	}
	provider, ok := strings.CutPrefix(scheme, "via+")
	if !ok || provider == "" || strings.Trim(provider, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return URI{}, false, fmt.Errorf("unknown scheme %q: nbd, nbd+unix, via+shm and via+roce are known", scheme)
	}
	return URI{Provider: provider}, provider == "shm", nil
}

// parseQuery reads the parameters. Each may stand once, and one that is not
// known is an error: it would be without effect.
func (u *URI) parseQuery(query string, local bool) error {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		if name != "socket" || !local {
			return fmt.Errorf("unknown parameter %q for %s", name, u.schemeName(local))
		}
		if u.Socket != "" {
			return errors.New("the parameter socket stands twice")
		}
		path, err := url.PathUnescape(value)
		if err != nil {
			return fmt.Errorf("the socket path is not percent-encoded right: %w", err)
		}
		switch {
		case path == "":
			return errors.New("the parameter socket is empty")
		case strings.ContainsRune(path, 0):
			return errors.New("the socket path contains a zero byte")
		case len(path) > maximumSocketPath:
			return fmt.Errorf("the socket path has %d bytes, at most %d are allowed", len(path), maximumSocketPath)
		}
		u.Socket = path
	}
	if local && u.Socket == "" {
		return fmt.Errorf("%s needs the path of a socket: append ?socket=PATH", u.schemeName(local))
	}
	return nil
}

// schemeName is scheme before the socket is known.
func (u URI) schemeName(local bool) string {
	if local {
		u.Socket = "?"
	}
	return u.scheme()
}

// parseAuthority reads host and port.
func (u *URI) parseAuthority(authority string, local bool) error {
	switch {
	case local && authority != "":
		return fmt.Errorf("%s has no host: write %s:///EXPORT?socket=PATH", u.schemeName(local), u.schemeName(local))
	case local:
		return nil
	case strings.ContainsRune(authority, '@'):
		return errors.New("a user name is of no use without TLS, which this build does not have")
	}
	host, port, err := splitPort(authority)
	if err != nil {
		return err
	}
	u.Host, u.Port = host, u.defaultPort()
	if host == "" {
		u.Host = "localhost"
	}
	if port == "" {
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || port[0] == '+' {
		return fmt.Errorf("port %q is not in 0…65535", port)
	}
	u.Port = uint16(n)
	return nil
}

// splitPort splits an authority and checks the host.
func splitPort(authority string) (host, port string, err error) {
	if literal, rest, ok := strings.Cut(authority, "]"); ok && strings.HasPrefix(literal, "[") {
		address, err := netip.ParseAddr(strings.Replace(literal[1:], "%25", "%", 1))
		if err != nil || !address.Is6() {
			return "", "", fmt.Errorf("%s] is not an IPv6 address", literal)
		}
		for _, c := range []byte(address.Zone()) {
			if !hostByte(c) {
				return "", "", fmt.Errorf("the zone of %s] is not the name of an interface", literal)
			}
		}
		port, ok := strings.CutPrefix(rest, ":")
		if !ok && rest != "" {
			return "", "", fmt.Errorf("%q follows the IPv6 address: write [ADDRESS]:PORT", rest)
		}
		return address.String(), port, nil
	}
	host, port, _ = strings.Cut(authority, ":")
	if strings.ContainsRune(port, ':') {
		return "", "", errors.New("an IPv6 address needs brackets: write [ADDRESS]:PORT")
	}
	for _, c := range []byte(host) {
		if !hostByte(c) {
			return "", "", fmt.Errorf("host %q contains %q", host, c)
		}
	}
	return host, port, nil
}

// hostByte reports whether c may stand in the name of a host or an interface.
func hostByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '.' || c == '_'
}

// CheckRemote reports why the URI cannot name an export to connect to.
func (u URI) CheckRemote() error {
	if u.Socket == "" && u.Port == 0 {
		return errors.New("port 0 is only good to listen on")
	}
	return u.checkSupported()
}

// checkSupported reports what the URI asks for that this build does not have.
func (u URI) checkSupported() error {
	if u.TLS {
		return fmt.Errorf("%s: TLS is not supported yet: use nbd:// or nbd+unix:// on a trusted path", u.scheme())
	}
	return nil
}

// checkNBD reports why NBD cannot be served at the URI.
func (u URI) checkNBD() error {
	if u.VIA() {
		return fmt.Errorf("%s is not an NBD scheme: use nbd:// or nbd+unix://", u.scheme())
	}
	return u.checkSupported()
}

// checkListen reports why the target cannot listen at the URI.
func (u URI) checkListen() error {
	if u.Export != "" {
		return fmt.Errorf("a URI to listen on names no export, and this one names %q", u.Export)
	}
	return u.checkSupported()
}
