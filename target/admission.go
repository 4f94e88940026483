package target

// admission decides which connections the server accepts. No origin has all
// places, and some are kept for origins that have an export open: a peer that
// connects without end shuts out no other, least of all one that needs another
// connection for a disk that it uses.
type admission struct {
	most      int // connections
	perOrigin int // of one origin that has an export open
	total     int
	origins   map[string]*origin
}

// origin is the peers of a host, see [via.ConnRequest.Origin], or of an
// identity, once that is proved.
type origin struct {
	conns int
	opens int // connections that opened an export
}

func newAdmission(most, perOrigin int) admission {
	return admission{most: most, perOrigin: perOrigin, origins: make(map[string]*origin)}
}

// Shares of the places, and what an origin has of a server with few.
const (
	keptShare    = 4 // for origins that have an export open
	unknownShare = 8 // one origin may have without an open export
	leastShare   = 8 // places
)

// begin counts a connection, or returns why it is refused.
func (a *admission) begin(from string) (refusal string) {
	o := a.origins[from]
	if o == nil {
		o = &origin{}
	}
	known := from == "" || o.opens > 0
	switch {
	case a.total >= a.most:
		return "all places are in use"
	case from != "" && o.conns >= a.perOrigin:
		return "the host has as many connections as one may have"
	case !known && o.conns >= max(leastShare, a.most/unknownShare):
		return "the host has as many connections as one may have without an open export"
	case !known && a.total >= a.most-a.most/keptShare:
		return "the places left are for hosts that have an export open"
	}
	a.origins[from] = o
	a.restore(from)
	return ""
}

// restore counts a connection again that was released, without a check.
func (a *admission) restore(from string) {
	o := a.origins[from]
	if o == nil {
		o = &origin{}
		a.origins[from] = o
	}
	a.total++
	o.conns++
}

// opened counts a connection, by which the origin opened an export.
func (a *admission) opened(from string) { a.origins[from].opens++ }

// release counts a connection that ended, and whether it had opened an export.
func (a *admission) release(from string, opened bool) {
	o := a.origins[from]
	a.total--
	o.conns--
	if opened {
		o.opens--
	}
	if o.conns == 0 {
		delete(a.origins, from)
	}
}
