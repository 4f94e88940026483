package config

import (
	"strings"
	"testing"
)

func TestParseURI(t *testing.T) {
	for _, c := range []struct {
		in     string
		want   URI
		string string // what String returns; empty if it is in
	}{
		{"nbd://example.org/disk", URI{Host: "example.org", Port: 10809, Export: "disk"}, ""},
		{"nbd://example.org:10809", URI{Host: "example.org", Port: 10809}, "nbd://example.org/"},
		{"nbd://example.org:99/", URI{Host: "example.org", Port: 99}, ""},
		{"nbd://", URI{Host: "localhost", Port: 10809}, "nbd://localhost/"},
		{"nbd:///x", URI{Host: "localhost", Port: 10809, Export: "x"}, "nbd://localhost/x"},
		{"NBD://h/X", URI{Host: "h", Port: 10809, Export: "X"}, "nbd://h/X"},
		{"nbd://h//absolute/path", URI{Host: "h", Port: 10809, Export: "/absolute/path"}, ""},
		{"nbd://h/a%20b%2Fc%3F", URI{Host: "h", Port: 10809, Export: "a b/c?"}, "nbd://h/a%20b/c%3F"},
		{"nbd://h/a+b", URI{Host: "h", Port: 10809, Export: "a+b"}, "nbd://h/a%2Bb"},
		{"nbd://[::1]:7/x", URI{Host: "::1", Port: 7, Export: "x"}, ""},
		{"nbd://[2001:db8::2]/", URI{Host: "2001:db8::2", Port: 10809}, ""},
		{"nbd://[fe80::1%25eth0]/", URI{Host: "fe80::1%eth0", Port: 10809}, ""},
		{"nbd://h:0/", URI{Host: "h"}, ""},
		{"nbd://h:/x", URI{Host: "h", Port: 10809, Export: "x"}, "nbd://h/x"},
		{"nbd+unix:///?socket=/run/s", URI{Socket: "/run/s"}, ""},
		{"nbd+unix:///disk?socket=/tmp/a%20b%26c", URI{Socket: "/tmp/a b&c", Export: "disk"}, ""},
		{"nbd+unix://?socket=s&", URI{Socket: "s"}, "nbd+unix:///?socket=s"},
		{"nbds://h/x", URI{TLS: true, Host: "h", Port: 10809, Export: "x"}, ""},
		{"nbds+unix:///x?socket=s", URI{TLS: true, Socket: "s", Export: "x"}, ""},
		{"via+shm:///disk?socket=/run/v", URI{Provider: "shm", Socket: "/run/v", Export: "disk"}, ""},
		{"via+roce://10.0.0.1/disk", URI{Provider: "roce", Host: "10.0.0.1", Port: 10810, Export: "disk"}, ""},
		{"via+verbs://h:10810/", URI{Provider: "verbs", Host: "h", Port: 10810}, "via+verbs://h/"},
		{"via+other://h/", URI{Provider: "other", Host: "h", Port: 10810}, ""},
	} {
		t.Run(c.in, func(t *testing.T) {
			got, err := ParseURI(c.in)
			if err != nil {
				t.Fatal(err)
			}
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
			want := c.string
			if want == "" {
				want = c.in
			}
			if got.String() != want {
				t.Errorf("String is %s, want %s", got.String(), want)
			}
		})
	}
}

func TestParseURIRefuses(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "this is no URI"},
		{"disk.img", "this is no URI"},
		{"http://h/", `unknown scheme "http"`},
		{"via+://h/", `unknown scheme "via+"`},
		{"via+a!b://h/", "unknown scheme"},
		{"nbd+unix:///disk", "append ?socket=PATH"},
		{"nbd+unix:///disk?socket=", "the parameter socket is empty"},
		{"nbd+unix:///?socket=a&socket=b", "stands twice"},
		{"nbd+unix:///?socket=" + strings.Repeat("s", 108), "the socket path has 108 bytes"},
		{"nbd+unix:///?socket=a%00b", "zero byte"},
		{"nbd+unix:///?socket=%zz", "not percent-encoded right"},
		{"nbd+unix://host/?socket=s", "nbd+unix has no host"},
		{"via+shm://host/?socket=s", "via+shm has no host"},
		{"nbd://h/?socket=s", `unknown parameter "socket" for nbd`},
		{"nbd://h/?tls-type=x509", `unknown parameter "tls-type"`},
		{"nbd+unix:///?socket=s&x-depth=4", `unknown parameter "x-depth"`},
		{"nbd://h/a b", "a space or a control character"},
		{"nbd://h/a\nb", "a space or a control character"},
		{"nbd://h/#x", "no fragment"},
		{"nbd://h/%", "not percent-encoded right"},
		{"nbd://h/%00", "zero byte"},
		{"nbd://h/%ff", "not UTF-8"},
		{"nbd://h/" + strings.Repeat("n", 4097), "4097 bytes"},
		{"nbd://h/" + strings.Repeat("n", 20000), "the URI is longer"},
		{"nbd://h:65536/", "port"},
		{"nbd://h:+1/", "port"},
		{"nbd://h:x/", "port"},
		{"nbd://::1/", "an IPv6 address needs brackets"},
		{"nbd://[::1/", "an IPv6 address needs brackets"},
		{"nbd://[1.2.3.4]/", "not an IPv6 address"},
		{"nbd://[::1]x/", "follows the IPv6 address"},
		{"nbd://[fe80::1%25e!0]/", "the zone of"},
		{"nbd://[fe80::1/0]/", "needs brackets"},
		{"nbd://user@h/", "user name"},
		{"nbd://a_b!c/", "contains '!'"},
	} {
		t.Run(c.in, func(t *testing.T) {
			u, err := ParseURI(c.in)
			if err == nil {
				t.Fatalf("accepted as %+v", u)
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestNetwork(t *testing.T) {
	for in, want := range map[string][2]string{
		"nbd://h:1/":             {"tcp", "h:1"},
		"nbd://[::1]:2/":         {"tcp", "[::1]:2"},
		"nbd+unix:///?socket=/s": {"unix", "/s"},
	} {
		u, err := ParseURI(in)
		if err != nil {
			t.Fatal(err)
		}
		if network, address := u.Network(); network != want[0] || address != want[1] {
			t.Errorf("%s: got %s %s, want %v", in, network, address, want)
		}
	}
}

// What ParseURI accepts it accepts again, with the same meaning, after String.
func FuzzParseURI(f *testing.F) {
	for _, seed := range []string{
		"nbd://example.org:1/disk", "nbd://[fe80::1%25eth0]/a%20b", "nbd+unix:///?socket=/s",
		"nbds+unix:///x?socket=%2f", "via+shm:///x?socket=s&", "via+roce://10.0.0.1", "via+x-y://h:10810//%e2%82%ac",
		"nbd://%", "nbd://h/?a=b", "://", "nbd://[::ffff:1.2.3.4]:1/",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		u, err := ParseURI(in)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("the complaint about %q is not one clean line: %q", in, err)
			}
			return
		}
		if (u.Socket == "") == (u.Host == "") || (u.Host == "" && u.Port != 0) {
			t.Errorf("%q has no single endpoint: %+v", in, u)
		}
		again, err := ParseURI(u.String())
		if err != nil || again != u {
			t.Errorf("%q becomes %q, which is %+v %v, not %+v", in, u.String(), again, err, u)
		}
	})
}
