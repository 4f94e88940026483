// Package access decides who may do what with an export. The NBD server and the
// target of every VIA provider ask one function, [Admits], so that an export
// has the same clients over each of them.
package access

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Identity is who a client is, as far as a certificate or the kernel proves it.
// The zero Identity is anonymous. An Identity does not change and is safe for
// concurrent use.
type Identity struct {
	names []string      // in a verified certificate
	local bool          // a process of this host
	uid   uint32        // of the process
	guest bool          // the listener is open to the user for lists alone
	user  func() string // the name of uid, "" without one
}

// Local returns the identity of a process of this host, by the user ID that the
// kernel reports. Its name is looked up when a rule needs it, once.
func Local(uid uint32) Identity {
	return Identity{local: true, uid: uid, user: sync.OnceValue(func() string { return userName(uid) })}
}

// Guest returns the identity of a local user whom the listener would not admit
// if no list named one: only lists count for it.
func (i Identity) Guest() Identity {
	i.guest = true
	return i
}

// WithCertificate returns the identity with the names in a certificate, whose
// chain, usage and revocation the caller has verified: the common name and the
// DNS names.
func (i Identity) WithCertificate(leaf *x509.Certificate) Identity {
	i.names = nil
	for _, name := range slices.Concat([]string{leaf.Subject.CommonName}, leaf.DNSNames) {
		if name != "" && !slices.Contains(i.names, name) {
			i.names = append(i.names, name)
		}
	}
	return i
}

// Key is what limits count an identity by: the first name in its certificate,
// or its user ID. It is empty of an anonymous client, which is counted by its
// address.
func (i Identity) Key() string {
	switch {
	case len(i.names) > 0:
		return "certificate " + i.names[0]
	case i.local:
		return "user " + strconv.FormatUint(uint64(i.uid), 10)
	}
	return ""
}

// Certified reports whether the identity has names in a certificate.
func (i Identity) Certified() bool { return len(i.names) > 0 }

// LogValue is String, for logs of any format, which call it only for lines that
// they write.
func (i Identity) LogValue() slog.Value { return slog.StringValue(i.String()) }

// String describes the identity for people.
func (i Identity) String() string {
	var parts []string
	if len(i.names) > 0 {
		parts = append(parts, "certificate "+strings.Join(i.names, ", "))
	}
	if i.local {
		text := fmt.Sprintf("uid %d", i.uid)
		if name := i.user(); name != "" {
			text = fmt.Sprintf("user %s, uid %d", name, i.uid)
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return "anonymous"
	}
	return strings.Join(parts, "; ")
}
