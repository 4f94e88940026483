package config

import (
	"fmt"
	"net"
	"strconv"
	"time"
)

// Metrics is the section of the listener for metrics and health.
type Metrics struct {
	// Listen is HOST:PORT, or :PORT for 127.0.0.1. Empty means that there is no
	// listener.
	Listen string `mapstructure:"listen"`

	// Certificates is the folder of the listener's certificates: it speaks TLS
	// then, with clients that show a certificate of the authority. Empty means
	// without TLS.
	Certificates string `mapstructure:"certificates"`

	// Exports are those that have metrics each if there are more than 256.
	// Metrics of the others are sums.
	Exports []string `mapstructure:"exports"`

	// ReadyAway is how long the target of an attached disk is away before the
	// process reports that it is not ready.
	ReadyAway time.Duration `mapstructure:"ready_away"`
}

// maximumMetricsExports bounds [Metrics.Exports].
const maximumMetricsExports = 256

// Address returns the host and port to listen at.
func (m Metrics) Address() (URI, error) {
	host, port, err := net.SplitHostPort(m.Listen)
	if err != nil {
		return URI{}, fmt.Errorf("%q is not HOST:PORT, such as 127.0.0.1:9810", m.Listen)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return URI{}, fmt.Errorf("%q: the port %q is not in 0…65535", m.Listen, port)
	}
	u, err := ParseURI(URI{Host: host, Port: uint16(n)}.String())
	if err != nil || u != (URI{Host: u.Host, Port: uint16(n)}) {
		return URI{}, fmt.Errorf("%q: %q is neither a name nor an address", m.Listen, host)
	}
	return u, nil
}

func (m Metrics) validate(bad *complaints, insecure bool) {
	if m.Listen != "" {
		u, err := m.Address()
		switch {
		case err != nil:
			bad.add("metrics.listen", "%v", err)
		case !u.Local() && m.Certificates == "" && !insecure:
			bad.unsafe("metrics.listen", "any host that reaches %s could read who uses the disks: set metrics.certificates to a folder that viablk pki made, listen at a loopback address, or accept that with --insecure", m.Listen)
		}
	}
	if len(m.Exports) > maximumMetricsExports {
		bad.add("metrics.exports", "%d exports are listed, at most %d are allowed", len(m.Exports), maximumMetricsExports)
	}
	bad.duration("metrics.ready_away", m.ReadyAway, 0, maximumTimeout)
}
