package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// joinPort returns the text of an address.
func joinPort(host string, port uint16) string {
	if strings.ContainsRune(host, ':') {
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(int(port))
}

// authority returns what a URI says of a host.
func (u URI) authority(host string, port uint16) string {
	if strings.ContainsRune(host, ':') {
		host = "[" + strings.ReplaceAll(host, "%", "%25") + "]"
	}
	if port != u.defaultPort() {
		host += ":" + strconv.Itoa(int(port))
	}
	return host
}

// OtherHosts returns the addresses of the further hosts, as Network returns
// that of the first.
func (u URI) OtherHosts() (list []string) {
	if u.Others == "" {
		return nil
	}
	for text := range strings.SplitSeq(u.Others, ",") {
		other := u
		if other.parseHost(text) == nil { // ParseURI has checked it
			_, address := other.Network()
			list = append(list, address)
		}
	}
	return list
}

// HostAddress returns the address of one more host of the URI's target, as
// OtherHosts does.
func (u URI) HostAddress(text string) (string, error) {
	if !u.VIA() || u.Socket != "" {
		return "", fmt.Errorf("the target of %s has one host: name another one by a URI, via+…", u)
	}
	other := u
	if text == "" || strings.Contains(text, ",") {
		return "", fmt.Errorf("%q is no host: write HOST or HOST:PORT", text)
	}
	if err := other.parseHost(text); err != nil {
		return "", err
	}
	_, address := other.Network()
	return address, nil
}

// maximumHosts is how many hosts of a target a URI has.
const maximumHosts = 8

// parseOthers reads the further hosts.
func (u *URI) parseOthers(list string) error {
	var others []string
	for text := range strings.SplitSeq(list, ",") {
		other := URI{Provider: u.Provider}
		switch err := other.parseHost(text); {
		case text == "":
			return errors.New("a comma stands between two hosts, and one of them is empty")
		case err != nil:
			return err
		}
		others = append(others, u.authority(other.Host, other.Port))
	}
	if len(others) >= maximumHosts {
		return fmt.Errorf("a URI has %d hosts of a target at most", maximumHosts)
	}
	u.Others = strings.Join(others, ",")
	return nil
}

// parseHost reads one host with its port.
func (u *URI) parseHost(authority string) error {
	host, port, err := splitPort(authority)
	if err != nil {
		return err
	}
	u.Host, u.Port = host, u.defaultPort()
	if host == "" {
		u.Host = "localhost"
	}
	return u.parsePort(port)
}
