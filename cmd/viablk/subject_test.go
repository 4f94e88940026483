package main

import (
	"errors"
	"syscall"
	"testing"

	"github.com/viablk/viablk/config"
)

// Each layer names its address; the user reads it once, with the cause.
func TestErrorNamesItsSubjectOnce(t *testing.T) {
	for _, c := range []struct{ doing, uri, text, want string }{
		{
			"attach", "via+shm:///d?socket=/none",
			"attach /none: connect to /none#viablk/1: no process listens at socket /none: address not reachable: dial unixpacket /none: connect: no such file or directory",
			"attach via+shm:///d?socket=/none: no process listens: no such file or directory",
		},
		{
			"attach", "via+roce://h/d", `attach h:4791: connect to h:4791#viablk/1: resolve "h": address not reachable: lookup h on 10.0.0.53:53: no such host`,
			"attach via+roce://h/d: no such host",
		},
		{
			"attach", "via+roce://10.0.0.1/d", "attach 10.0.0.1:4791: connect to 10.0.0.1:4791#viablk/1: connect to 10.0.0.1:4791: host or port unreachable: address not reachable",
			"attach via+roce://10.0.0.1/d: host or port unreachable",
		},
		{
			"attach", "via+shm:///h?socket=/t", `attach /t: no export is named "h": not found`,
			`attach via+shm:///h?socket=/t: no export is named "h": not found`,
		},
		{"", "nbd://h:1/", "connect to nbd://h:1/: dial tcp: lookup h: no such host", "nbd://h:1/: no such host"},
		{"listen at", "nbd://10.0.0.1/", "listen: listen tcp 10.0.0.1:10809: bind: cannot assign requested address", "listen at nbd://10.0.0.1/: cannot assign requested address"},
		{
			"listen at", "via+roce://10.0.0.1/",
			"listen at 10.0.0.1:4791#viablk/1: open 10.0.0.1:4791: invalid parameter: port 10.0.0.1:4791: cannot assign requested address: no interface of this host has it",
			"listen at via+roce://10.0.0.1/: cannot assign requested address: no interface of this host has it",
		},
		{"", "nbd://e/", "the exporter has no export: e", "nbd://e/: the exporter has no export"},
		{"attach", "via+roce://h/", "attach h:4791: address not reachable", "attach via+roce://h/: address not reachable"},
		{"attach", "via+roce://h/", "attach h:4791", "attach via+roce://h/: attach h:4791"},
	} {
		u, err := config.ParseURI(c.uri)
		if err != nil {
			t.Fatal(err)
		}
		if got := about(c.doing, u, errors.New(c.text)).Error(); got != c.want {
			t.Errorf("%s\n  is %s\nwant %s", c.text, got, c.want)
		}
	}
	if !errors.Is(about("", config.URI{}, syscall.EBUSY), syscall.EBUSY) {
		t.Error("the cause is lost to errors.Is")
	}
}
