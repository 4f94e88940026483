package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/joint"
)

// reach is how a disk's target is reached: over one provider, or over several
// that are parts of one NIC.
type reach struct {
	uri   config.URI // of the disk
	parts []reachPart
	list  []string // hosts of the target, as the NIC names them
}

// reachPart is a provider and device among those that reach a target.
type reachPart struct {
	name string
	uri  config.URI // the first over it
}

// newReach returns how a disk is reached at its URI and over further paths.
func newReach(u config.URI, paths []config.URI) *reach {
	r := &reach{uri: u}
	all := append([]config.URI{u}, paths...)
	for _, x := range all {
		if r.part(x) == nil {
			r.parts = append(r.parts, reachPart{r.newName(x.Provider), x})
		}
	}
	for _, x := range all {
		for _, host := range append([]string{hostOf(x)}, x.OtherHosts()...) {
			r.list = append(r.list, r.named(r.part(x), host))
		}
	}
	return r
}

// newName names a part by its provider, and by a number if that has several.
func (r *reach) newName(provider string) string {
	n := 1
	for _, p := range r.parts {
		if p.uri.Provider == provider {
			n++
		}
	}
	if n == 1 {
		return provider
	}
	return fmt.Sprintf("%s-%d", provider, n)
}

// part returns the part that a URI is reached over, or nil.
func (r *reach) part(u config.URI) *reachPart {
	for i := range r.parts {
		if r.parts[i].uri.SameFabric(u) {
			return &r.parts[i]
		}
	}
	return nil
}

// named returns the host of a part as the NIC names it.
func (r *reach) named(p *reachPart, host string) string {
	if len(r.parts) == 1 {
		return host
	}
	return joint.Host(p.name, host)
}

// open opens the NIC.
func (r *reach) open(log *slog.Logger, trace *tracer) (*via.NIC, error) {
	if len(r.parts) == 1 {
		return openNIC(r.uri, log, trace, "initiator")
	}
	var parts []joint.Part
	for _, p := range r.parts {
		provider := providerOf(p.uri)
		if provider == nil {
			return nil, errNoProvider(p.uri)
		}
		parts = append(parts, joint.Part{Name: p.name, Provider: provider, Device: deviceOf(p.uri)})
	}
	p, err := joint.New(parts...)
	if err != nil {
		return nil, err
	}
	return openDevice(p, "", r.uri, log, trace, "initiator")
}

// host returns a host as the NIC names it. It is given by a URI of a path, as
// "viablk path ls" prints it, or as another host of the disk's provider.
func (r *reach) host(text string) (string, error) {
	if strings.Contains(text, "://") {
		return r.hostOfPath(text)
	}
	if name, rest, ok := strings.Cut(text, ":"); ok && len(r.parts) > 1 {
		for i := range r.parts {
			p := &r.parts[i]
			if p.name == name && p.uri.Socket != "" {
				return r.named(p, rest), nil
			}
			if p.name == name {
				host, err := p.uri.HostAddress(rest)
				return r.named(p, host), err
			}
		}
	}
	if r.uri.Socket != "" && text == r.uri.Socket { // the host of the disk itself
		return r.named(&r.parts[0], text), nil
	}
	host, err := r.uri.HostAddress(text)
	return r.named(&r.parts[0], host), err
}

// hostOfPath returns the host that the URI of a path names.
func (r *reach) hostOfPath(text string) (string, error) {
	u, err := r.uri.Path(text)
	if err != nil {
		return "", err
	}
	p := r.part(u)
	switch {
	case u.Others != "":
		return "", fmt.Errorf("%q: name one host at a time", text)
	case p == nil:
		return "", fmt.Errorf("%q: this process has opened %s alone: attach the disk again with --path %s", text, r.partNames(), text)
	}
	return r.named(p, hostOf(u)), nil
}

// partNames returns the names of the parts.
func (r *reach) partNames() string {
	var names []string
	for _, p := range r.parts {
		names = append(names, p.name)
	}
	return strings.Join(names, " and ")
}
