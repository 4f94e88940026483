package access

// Mode is what a client asks for.
type Mode uint8

// The modes.
const (
	List      Mode = iota // see the export
	ReadOnly              // open it for reading
	ReadWrite             // open it for writing
	Exclusive             // open it as the only client
	Preempt               // end other clients to open it, in whatever mode
)

// Verdict is what a client gets.
type Verdict uint8

// The verdicts.
const (
	Hidden  Verdict = iota // the client does not learn that there is such an export
	MayRead                // not this mode, but the client may see and read the export
	Granted                // what it asks for
)

// Admits decides whether a client may use an export in a mode. An export that
// does not exist is decided as one with the rights [Unlisted], which costs the
// same as an export that is hidden.
func Admits(i Identity, r *Rights, m Mode) Verdict {
	if r == nil {
		if i.guest && !i.Certified() {
			return Hidden
		}
		return Granted
	}
	switch has := r.of(i); {
	case has == 0:
		return Hidden
	case has == toRead && m > ReadOnly:
		return MayRead
	}
	return Granted
}

// Unlisted are the rights of an export without clients.
var Unlisted = &Rights{clients: map[entry]right{{kind: byCertificate}: toRead}}

// of returns the most that one of the identity's names may do.
func (r *Rights) of(i Identity) right {
	var most right
	for _, name := range i.names {
		most = max(most, r.clients[entry{kind: byCertificate, name: name}])
	}
	if i.local {
		most = max(most, r.clients[entry{kind: byUID, uid: i.uid}], r.clients[entry{kind: byUser, name: i.user()}])
	}
	return most
}
