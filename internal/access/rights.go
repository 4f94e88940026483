package access

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// right is what a client on a list may do.
type right uint8

const (
	toRead right = 1 + iota
	toWrite
)

// entry is a client on a list: a name in a certificate, or a local user.
type entry struct {
	kind kind
	name string // of a certificate or a user
	uid  uint32
}

// kind is how a client of an entry is known.
type kind uint8

const (
	byCertificate kind = iota
	byUser
	byUID
)

// Rights are the clients of an export and what they may do. Nil stands for
// every client that the listener admits, and Rights without a client for none.
// They do not change.
type Rights struct {
	clients map[entry]right
}

// Limits of a list, which an administrator wrote.
const (
	maxEntries   = 4096
	maxEntrySize = 253 // bytes, of the longest DNS name
	maxUserSize  = 64  // bytes
)

// Parse checks the lists of an export: clients that read and write, and clients
// that only read. A plain name is one in a certificate, user:NAME and uid:N are
// local users. Without both lists, which is nil and not empty, Parse returns
// nil.
func Parse(clients, clientsReadOnly []string) (*Rights, error) {
	if clients == nil && clientsReadOnly == nil {
		return nil, nil
	}
	if n := len(clients) + len(clientsReadOnly); n > maxEntries {
		return nil, fmt.Errorf("%d clients, at most %d are allowed", n, maxEntries)
	}
	r := &Rights{clients: make(map[entry]right)}
	for _, text := range clients {
		e, err := parseEntry(text)
		if err != nil {
			return nil, err
		}
		r.clients[e] = toWrite
	}
	for _, text := range clientsReadOnly {
		e, err := parseEntry(text)
		if err != nil {
			return nil, err
		}
		if r.clients[e] == toWrite {
			return nil, fmt.Errorf("%q is in clients and in clients_read_only: remove it from one of them", text)
		}
		r.clients[e] = toRead
	}
	return r, nil
}

// parseEntry checks an entry of a list.
func parseEntry(text string) (entry, error) {
	scheme, name, ok := strings.Cut(text, ":")
	switch {
	case text == "":
		return entry{}, errors.New("the name of a client is empty")
	case len(text) > maxEntrySize:
		return entry{}, fmt.Errorf("the name of a client has %d bytes, at most %d are allowed", len(text), maxEntrySize)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unprintable):
		return entry{}, fmt.Errorf("the name %q of a client is not printable UTF-8", text)
	case !ok:
		return entry{kind: byCertificate, name: text}, nil
	case scheme == "user":
		if err := checkUser(name); err != nil {
			return entry{}, fmt.Errorf("client %q: %w", text, err)
		}
		return entry{kind: byUser, name: name}, nil
	case scheme == "uid":
		uid, err := strconv.ParseUint(name, 10, 32)
		if err != nil || uid == 1<<32-1 || name != strconv.FormatUint(uid, 10) {
			return entry{}, fmt.Errorf("client %q: a user ID is a number up to 4294967294", text)
		}
		return entry{kind: byUID, uid: uint32(uid)}, nil
	}
	return entry{}, fmt.Errorf("client %q: write user:NAME or uid:N for a local user, or the name in a certificate, which has no colon", text)
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// checkUser reports why name cannot be that of a local user.
func checkUser(name string) error {
	switch {
	case name == "":
		return errors.New("the name of the user is missing")
	case len(name) > maxUserSize:
		return fmt.Errorf("the name of the user has %d bytes, at most %d are allowed", len(name), maxUserSize)
	case strings.ContainsAny(name, ":/, ") || strings.ContainsFunc(name, unprintable):
		return errors.New("no user has such a name")
	}
	return nil
}

// Certificates reports whether a name in a certificate is among the clients.
func (r *Rights) Certificates() bool { return r.has(byCertificate) }

// Users reports whether a local user is among the clients.
func (r *Rights) Users() bool { return r.has(byUser) || r.has(byUID) }

func (r *Rights) has(k kind) bool {
	if r == nil {
		return false
	}
	for e := range r.clients {
		if e.kind == k {
			return true
		}
	}
	return false
}

// UIDs returns the IDs of the local users among the clients, sorted, and the
// names of those that this host does not have.
func (r *Rights) UIDs() (uids []uint32, unknown []string) {
	if r == nil {
		return nil, nil
	}
	for e := range r.clients {
		switch e.kind {
		case byUID:
			uids = append(uids, e.uid)
		case byUser:
			if uid, err := userID(e.name); err == nil {
				uids = append(uids, uid)
			} else {
				unknown = append(unknown, e.name)
			}
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids), slices.Sorted(slices.Values(unknown))
}
