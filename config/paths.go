package config

import (
	"errors"
	"fmt"
	"strings"
)

// RemotePaths returns the URIs of further paths to the remote disk, see Path.
func (a Attach) RemotePaths() ([]URI, error) {
	if len(a.Paths) == 0 {
		return nil, nil
	}
	remote, err := a.Remote()
	if err != nil {
		return nil, err
	}
	paths := make([]URI, len(a.Paths))
	for i, text := range a.Paths {
		if paths[i], err = remote.Path(text); err != nil {
			return nil, err
		}
		if a.Certificates != "" && paths[i].Sealable() && !remote.Sealable() {
			return nil, fmt.Errorf("%q: certificates protect no session over %s: name the path over the network as the disk, without that one, or leave the certificates out", text, remote.scheme())
		}
	}
	return paths, nil
}

// Path reads the URI of a further path to the disk of a URI: hosts of its
// target, maybe over another provider. The export is the same, or left out. It
// has no certificates: those of the disk protect the session on all paths.
func (u URI) Path(text string) (URI, error) {
	p, err := ParseURI(text)
	if err != nil {
		return URI{}, err
	}
	if err := u.checkPath(p); err != nil {
		return URI{}, fmt.Errorf("%q: %w", text, err)
	}
	p.Export = u.Export
	return p, nil
}

// checkPath reports why a URI names no path to the disk of u.
func (u URI) checkPath(p URI) error {
	switch {
	case !u.VIA() || !p.VIA():
		return errors.New("only a disk over VIA has several paths, via+… each")
	case p.Export != "" && p.Export != u.Export:
		return fmt.Errorf("it names the export %q, and the disk is %q: leave the export out", p.Export, u.Export)
	case p.Certificates != "" || p.Hostname != "":
		return errors.New("a path has the certificates of its disk: leave out tls-certificates and tls-hostname")
	case u.Sealable() && u.Certificates != "" && !p.Sealable():
		return fmt.Errorf("%s has no certificates, which protect the session: leave the path out, or the certificates", p.scheme())
	case !u.joins(p):
		return errors.New("via+verbs cannot share a session with another provider or device: its hardware chooses the handles of memory; name paths of one alone")
	}
	return p.CheckRemote()
}

// SameFabric reports whether both URIs are reached over the same device of the
// same provider.
func (u URI) SameFabric(other URI) bool {
	return u.Provider == other.Provider && u.Device == other.Device && u.Frames == other.Frames && u.NoOffloads == other.NoOffloads
}

// joins reports whether one session can have paths to both.
func (u URI) joins(other URI) bool {
	return u.SameFabric(other) || u.Provider != "verbs" && other.Provider != "verbs"
}

// validatePaths complains about paths that cannot be.
func (a Attach) validatePaths(bad *complaints) {
	for _, text := range a.Paths {
		if _, err := ParseURI(text); err != nil {
			bad.add("attach.paths", "%v", err)
			return
		}
	}
	if u, err := a.Remote(); err == nil { // no URI, or another complaint
		if paths, err := a.RemotePaths(); err != nil {
			bad.add("attach.paths", "%v", err)
		} else if n := countHosts(append(paths, u)); n > maximumHosts {
			bad.add("attach.paths", "%d hosts of a target: %d are the most", n, maximumHosts)
		}
	}
	if len(a.Paths) > 0 && a.CtrlLossTimeout == 0 {
		bad.add("attach.paths", "requests wait while they move to another path: set attach.ctrl_loss_timeout")
	}
}

// countHosts returns how many hosts URIs name.
func countHosts(uris []URI) (n int) {
	for _, u := range uris {
		n++
		if u.Others != "" {
			n += 1 + strings.Count(u.Others, ",")
		}
	}
	return n
}
