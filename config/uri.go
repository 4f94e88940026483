package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// The default ports: NBD's, the UDP port of RoCEv2, and that of other
// providers, a service number of the RDMA connection manager's port space.
const (
	PortNBD  = 10809
	PortRoCE = 4791
	PortVIA  = 10809
)

// maximumSocketPath is the longest unix socket path in bytes.
const maximumSocketPath = 107

// maximumURI bounds a URI: every byte of the longest export name may be
// percent-encoded.
const maximumURI = 3*(maximumExportName+maximumSocketPath+2*maximumParameter) + 512

// maximumParameter is the longest value of a parameter, in bytes.
const maximumParameter = 1024

// URI is a parsed endpoint with an export:
//
//	nbd://host[:10809]/export            NBD over TCP
//	nbd+unix:///export?socket=PATH       NBD over a unix socket
//	nbd+vsock://CID[:10809]/export       NBD over AF_VSOCK; without CID: the host
//	nbds://…, nbds+unix://…, nbds+vsock://…  the same with TLS
//	via+shm:///export?socket=PATH        VIA over shared memory
//	via+roce://host[:4791]/export        VIA over RoCEv2; …?frames=…&offloads=off
//	via+verbs://host[:10809]/export      VIA over an RDMA device; …?device=…
//	via+PROVIDER://host[:10809]/export   VIA over any other provider
//	via+…://host[:port],host[:port]/…    hosts of the same target: several paths
//
// An empty host means localhost. The export is the path without its first
// slash, percent-decoded; it may be empty. URI values are comparable.
type URI struct {
	// Provider is the VIA provider; empty for NBD.
	Provider string

	// Vsock makes Host a CID of AF_VSOCK in decimal.
	Vsock bool

	// TLS asks for encryption.
	TLS bool

	// Certificates is the folder of a client's certificates, Hostname who the
	// server has to be, if it is not Host, and Unverified accepts any server:
	// parameters tls-certificates, tls-hostname and tls-verify-peer=false of
	// URIs with TLS. Those of VIA between hosts have the first two: the session
	// is sealed if there are certificates.
	Certificates, Hostname string
	Unverified             bool

	// Socket is the path of a unix socket; empty if the endpoint is a host.
	Socket string

	// Host is a name, an IPv4 or an IPv6 address, the latter without brackets.
	// It is empty only if Socket is not.
	Host string

	// Others are further hosts of the same target over VIA, each with its port
	// unless that is the provider's, with a comma between them.
	Others string

	// Port is zero for a unix socket, or to listen for NBD on a port that the
	// system chooses. For via+roce it is a UDP port, for via+verbs one of the
	// connection manager's.
	Port uint16

	// Frames is what this end of via+roce speaks Ethernet with itself, instead
	// of the kernel's sockets: INTERFACE,ADDRESS[/BITS][,GATEWAY]. It is the
	// parameter frames.
	Frames string

	// NoOffloads has this end of via+roce leave nothing to the kernel's
	// segmentation and coalescing: the parameter offloads=off.
	NoOffloads bool

	// Device is the device of this end: of via+verbs the kernel's name of an
	// RDMA device, empty for the first that is active; of via+roce a local IP
	// address, with a UDP port or without, that connections come from. It is
	// the parameter device.
	Device string

	// Export is the name of the export.
	Export string
}

// VIA reports whether the endpoint is reached through VIA rather than NBD.
func (u URI) VIA() bool { return u.Provider != "" }

// Sealable reports whether a VIA session at the URI can be sealed. Over shared
// memory the kernel says who the peer is.
func (u URI) Sealable() bool { return u.VIA() && u.Provider != "shm" }

// scheme returns what stands before the colon.
func (u URI) scheme() string {
	switch {
	case u.VIA():
		return "via+" + u.Provider
	case u.TLS && u.Vsock:
		return "nbds+vsock"
	case u.Vsock:
		return "nbd+vsock"
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
	switch {
	case u.Provider == "roce":
		return PortRoCE
	case u.VIA():
		return PortVIA
	default:
		return PortNBD
	}
}

// Network returns the network and address to dial or listen on, as package net
// names them: unix and a path, or tcp, or udp for via+roce, and host:port; or
// vsock and CID:port, which it does not know.
func (u URI) Network() (network, address string) {
	if u.Socket != "" {
		return "unix", u.Socket
	}
	network = "tcp"
	switch {
	case u.Provider == "roce":
		network = "udp"
	case u.Vsock:
		network = "vsock"
	}
	return network, joinPort(u.Host, u.Port)
}

// String returns the URI in a form that ParseURI reads back to the same value.
func (u URI) String() string {
	var b strings.Builder
	b.WriteString(u.scheme() + "://")
	if u.Socket == "" {
		b.WriteString(u.authority(u.Host, u.Port))
		if u.Others != "" {
			b.WriteString("," + u.Others)
		}
	}
	b.WriteString("/" + escape(u.Export))
	separator := "?"
	for _, p := range [...]struct{ name, value string }{
		{"socket", u.Socket},
		{"tls-certificates", u.Certificates},
		{"tls-hostname", u.Hostname},
		{"frames", u.Frames},
		{"device", u.Device},
	} {
		if p.value != "" {
			b.WriteString(separator + p.name + "=" + escape(p.value))
			separator = "&"
		}
	}
	if u.Unverified {
		b.WriteString(separator + "tls-verify-peer=false")
		separator = "&"
	}
	if u.NoOffloads {
		b.WriteString(separator + "offloads=off")
	}
	return b.String()
}

// Peer returns the URI without what concerns this end alone: as others may use
// it.
func (u URI) Peer() URI {
	u.Frames, u.NoOffloads, u.Device = "", false, ""
	if u.VIA() {
		u.Certificates, u.Hostname = "", ""
	}
	return u
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
	case "nbd+vsock":
		return URI{Vsock: true}, false, nil
	case "nbds+vsock":
		return URI{Vsock: true, TLS: true}, false, nil
	}
	provider, ok := strings.CutPrefix(scheme, "via+")
	if !ok || provider == "" || strings.Trim(provider, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return URI{}, false, fmt.Errorf("unknown scheme %q: nbd, nbd+unix, nbd+vsock, via+shm, via+roce and via+verbs are known", scheme)
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
		if err := u.parseParameter(name, value, local); err != nil {
			return err
		}
	}
	switch {
	case local && u.Socket == "":
		return fmt.Errorf("%s needs the path of a socket: append ?socket=PATH", u.schemeName(local))
	case len(u.Socket) > maximumSocketPath:
		return fmt.Errorf("the socket path has %d bytes, at most %d are allowed", len(u.Socket), maximumSocketPath)
	}
	return nil
}

// parseParameter reads one parameter.
func (u *URI) parseParameter(name, value string, local bool) error {
	var field *string
	switch {
	case name == "socket" && local:
		field = &u.Socket
	case name == "tls-certificates" && (u.TLS || u.Sealable()):
		field = &u.Certificates
	case name == "tls-hostname" && (u.TLS || u.Sealable()):
		field = &u.Hostname
	case name == "frames" && u.Provider == "roce":
		field = &u.Frames
	case name == "device" && (u.Provider == "verbs" || u.Provider == "roce"):
		field = &u.Device
	case name == "offloads" && u.Provider == "roce":
		if value != "auto" && value != "off" {
			return fmt.Errorf("the parameter %s is auto or off, not %q", name, value)
		}
		u.NoOffloads = value == "off"
		return nil
	case name == "tls-verify-peer" && u.TLS:
		verify, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("the parameter %s is true or false, not %q", name, value)
		}
		u.Unverified = !verify
		return nil
	default:
		return fmt.Errorf("unknown parameter %q for %s", name, u.schemeName(local))
	}
	if *field != "" {
		return fmt.Errorf("the parameter %s stands twice", name)
	}
	text, err := url.PathUnescape(value)
	switch {
	case err != nil:
		return fmt.Errorf("the parameter %s is not percent-encoded right: %w", name, err)
	case text == "":
		return fmt.Errorf("the parameter %s is empty", name)
	case strings.ContainsRune(text, 0):
		return fmt.Errorf("the parameter %s contains a zero byte", name)
	case len(text) > maximumParameter:
		return fmt.Errorf("the parameter %s has %d bytes, at most %d are allowed", name, len(text), maximumParameter)
	}
	*field = text
	if name == "frames" {
		return checkFrames(text)
	}
	return nil
}

// checkFrames checks the parameter frames as far as that can be without the
// interface.
func checkFrames(s string) error {
	const form = "the parameter frames is INTERFACE,ADDRESS[/BITS][,GATEWAY]"
	parts := strings.Split(s, ",")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return errors.New(form)
	}
	addr, _, hasBits := strings.Cut(parts[1], "/")
	local, err := netip.ParseAddr(addr)
	if hasBits && err == nil {
		_, err = netip.ParsePrefix(parts[1])
	}
	if err != nil {
		return fmt.Errorf("%s: %q is no IP address", form, parts[1])
	}
	if len(parts) == 3 {
		if gateway, err := netip.ParseAddr(parts[2]); err != nil || gateway.Is4() != local.Is4() {
			return fmt.Errorf("%s: %q is no address like %v", form, parts[2], local)
		}
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
		return errors.New("a user name is of no use: clients are known by their certificates")
	case u.Vsock:
		return u.parseCID(authority)
	}
	if first, others, ok := strings.Cut(authority, ","); ok && u.VIA() {
		authority = first
		if err := u.parseOthers(others); err != nil {
			return err
		}
	}
	return u.parseHost(authority)
}

// parsePort reads a port; the default is set already.
func (u *URI) parsePort(port string) error {
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
	if u.TLS && u.Certificates == "" && !u.Unverified {
		return fmt.Errorf("%s needs to know whom to trust: append tls-certificates=FOLDER to its parameters", u.scheme())
	}
	if u.Sealable() && u.Certificates == "" && u.Hostname != "" {
		return errors.New("the target shows its name to who has certificates: set tls-certificates beside tls-hostname")
	}
	// A connection over TCP to no address in particular reaches this host; RDMA
	// needs one.
	if a := u.address(); u.VIA() && a.IsUnspecified() {
		return fmt.Errorf("%v is only good to listen on: name the host", a)
	}
	for text := range strings.SplitSeq(u.Others, ",") {
		other := URI{Provider: u.Provider}
		if text == "" || other.parseHost(text) != nil {
			continue
		}
		if err := other.CheckRemote(); err != nil {
			return err
		}
	}
	return cmp.Or(u.checkCID(), u.checkHost())
}

// address returns the address that the host is, if it is one.
func (u URI) address() netip.Addr {
	a, _ := netip.ParseAddr(u.Host) // the zero address for a name
	return a
}

// checkHost reports why no host can have the address.
func (u URI) checkHost() error {
	if a := u.address(); a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return fmt.Errorf("%v is not the address of one host", a)
	}
	return nil
}

// ServerName returns who the server of a URI with TLS has to be.
func (u URI) ServerName() string {
	switch {
	case u.Hostname != "":
		return u.Hostname
	case u.Host != "" && !u.Vsock:
		return u.Host
	default:
		return "localhost"
	}
}

// checkTLS reports why a server cannot listen at the URI, whose TLS is set for
// the whole process.
func (u URI) checkTLS(n NBD) error {
	switch {
	case u.VIA() && (u.Certificates != "" || u.Hostname != ""):
		return errors.New("a URI to listen on has no TLS parameters: set target.certificates")
	case u.Certificates != "" || u.Hostname != "" || u.Unverified:
		return errors.New("a URI to listen on has no TLS parameters: set nbd.tls_certificates")
	case u.TLS && n.TLS != "require":
		return fmt.Errorf("%s means that clients have to use TLS: set nbd.tls to require", u.scheme())
	}
	return nil
}

// checkNBD reports why NBD cannot be served at the URI.
func (u URI) checkNBD(n NBD) error {
	if u.VIA() {
		return fmt.Errorf("%s is not an NBD scheme: use nbd://, nbd+unix:// or nbd+vsock://", u.scheme())
	}
	return cmp.Or(u.checkVsockPort(), u.checkTLS(n))
}

// checkListen reports why the target cannot listen at the URI.
func (u URI) checkListen(n NBD) error {
	if u.Export != "" {
		return fmt.Errorf("a URI to listen on names no export, and this one names %q", u.Export)
	}
	if u.Others != "" {
		return errors.New("a URI to listen on names one host: repeat it for each")
	}
	if u.Provider == "roce" && u.Port == 0 {
		return fmt.Errorf("port 0: peers have to know the UDP port of RoCE: leave it out for %d", PortRoCE)
	}
	return cmp.Or(u.checkHost(), u.checkVsockPort(), u.checkTLS(n))
}
