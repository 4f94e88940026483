package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/config"
)

// reachOf returns how a disk is reached by URIs, the disk's first.
func reachOf(t *testing.T, texts ...string) *reach {
	t.Helper()
	var uris []config.URI
	for _, text := range texts {
		u, err := config.ParseURI(text)
		if err != nil {
			t.Fatal(err)
		}
		uris = append(uris, u)
	}
	return newReach(uris[0], uris[1:])
}

// A NIC is composed of parts only if hosts need several; hosts have the names
// of their parts then.
func TestHostsOfParts(t *testing.T) {
	const shm, roce, device = "via+shm:///d?socket=/s", "via+roce://192.0.2.1,192.0.2.2/d", "via+roce://192.0.2.3/d?device=192.0.2.9"
	for _, c := range []struct {
		uris  []string
		parts int
		want  []string
	}{
		{[]string{roce}, 1, []string{"192.0.2.1:4791", "192.0.2.2:4791"}},
		{[]string{roce, "via+roce://192.0.2.3/d"}, 1, []string{"192.0.2.1:4791", "192.0.2.2:4791", "192.0.2.3:4791"}},
		{[]string{shm, "via+shm:///d?socket=/t"}, 1, []string{"/s", "/t"}},
		{[]string{shm, roce}, 2, []string{"shm:/s", "roce:192.0.2.1:4791", "roce:192.0.2.2:4791"}},
		{[]string{device, shm, roce}, 3, []string{"roce:192.0.2.3:4791", "shm:/s", "roce-2:192.0.2.1:4791", "roce-2:192.0.2.2:4791"}},
	} {
		r := reachOf(t, c.uris...)
		if len(r.parts) != c.parts || !slices.Equal(r.list, c.want) {
			t.Errorf("%q: %d parts, hosts %q", c.uris, len(r.parts), r.list)
		}
	}
}

// A host is named by a URI, as it is listed, or as one more of the disk's
// provider.
func TestNamesOfHosts(t *testing.T) {
	one, several := reachOf(t, "via+roce://192.0.2.1/d"), reachOf(t, "via+roce://192.0.2.1/d", "via+shm:///d?socket=/s")
	local := reachOf(t, "via+shm:///d?socket=/s", "via+roce://192.0.2.1/d")
	for _, c := range []struct {
		r          *reach
		text, want string
	}{
		{one, "192.0.2.2", "192.0.2.2:4791"},
		{one, "192.0.2.2:4792", "192.0.2.2:4792"},
		{one, "via+roce://192.0.2.2", "192.0.2.2:4791"},
		{one, "roce:4792", "roce:4792"}, // a name and a port
		{one, "via+shm:///?socket=/s", "!this process has opened roce alone: attach the disk again with --path via+shm"},
		{several, "192.0.2.2", "roce:192.0.2.2:4791"},
		{several, "roce:192.0.2.2", "roce:192.0.2.2:4791"},
		{several, "shm:/t", "shm:/t"},
		{several, "via+shm:///d?socket=/t", "shm:/t"},
		{several, "roce:a,b", "!is no host"},
		{several, "via+roce://a,b", "!name one host at a time"},
		{several, "via+roce://a?device=192.0.2.9", "!this process has opened roce and shm alone"},
		{local, "/s", "shm:/s"},
		{local, "192.0.2.2", "!name another one by a URI"},
	} {
		got, err := c.r.host(c.text)
		if want, refused := strings.CutPrefix(c.want, "!"); refused {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %q, %v, want %q", c.text, got, err, want)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%q: %q, %v, want %q", c.text, got, err, c.want)
		}
	}
}
