package rights

import (
	"os"

	"github.com/viablk/viablk/internal/handshake"
	"github.com/viablk/viablk/via/verbs"
)

// verbsVariable is the address of an RDMA device. Without one the table has no
// columns for it: integration/vm/interop runs the test where there is one.
const verbsVariable = "VIABLK_VERBS_ADDRESS"

// overVerbs serves the exports of the table at an RDMA device, if there is one,
// and returns its columns.
func (s *site) overVerbs() []column {
	address := os.Getenv(verbsVariable)
	if address == "" {
		return nil
	}
	inClear, sealed := address+":19101", address+":19102"
	s.serveVIA(verbs.New(verbs.Options{}), inClear, nil, exports)
	s.serveVIA(verbs.New(verbs.Options{}), sealed, &handshake.Guard{TLS: s.server}, exports)
	nic := openNIC(s.t, verbs.New(verbs.Options{}))
	s.t.Cleanup(func() { must(s.t, nic.Close()) })
	as := func(name string) func() (client, error) {
		return func() (client, error) { return newSealedClient(nic, sealed, s.clients[name]), nil }
	}
	return []column{
		{"none", "via+verbs", s.here(func() (client, error) { return dialVIA(nic, inClear) })},
		{"alice", "via+verbs with certificates", s.here(as("alice"))},
		{"mallory", "via+verbs with certificates", s.here(as("mallory"))},
	}
}
