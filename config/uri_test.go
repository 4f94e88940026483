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
		{"nbd+vsock:///x", URI{Vsock: true, Host: "2", Port: 10809, Export: "x"}, "nbd+vsock://2/x"},
		{"nbd+vsock://3:99/", URI{Vsock: true, Host: "3", Port: 99}, ""},
		{"nbd+vsock://007", URI{Vsock: true, Host: "7", Port: 10809}, "nbd+vsock://7/"},
		{"nbd+vsock://4294967295/", URI{Vsock: true, Host: "4294967295", Port: 10809}, ""},
		{"nbds+vsock://:1/x?tls-certificates=/c", URI{Vsock: true, TLS: true, Host: "2", Port: 1, Export: "x", Certificates: "/c"}, "nbds+vsock://2:1/x?tls-certificates=/c"},
		{"nbds://h/x", URI{TLS: true, Host: "h", Port: 10809, Export: "x"}, ""},
		{"nbds://h/x?tls-certificates=/etc/pki%20x&tls-hostname=s.example", URI{
			TLS: true, Host: "h", Port: 10809, Export: "x", Certificates: "/etc/pki x", Hostname: "s.example",
		}, ""},
		{"nbds+unix:///x?tls-verify-peer=0&socket=s", URI{TLS: true, Socket: "s", Export: "x", Unverified: true}, "nbds+unix:///x?socket=s&tls-verify-peer=false"},
		{"nbds://h/?tls-verify-peer=true", URI{TLS: true, Host: "h", Port: 10809}, "nbds://h/"},
		{"nbds+unix:///x?socket=s", URI{TLS: true, Socket: "s", Export: "x"}, ""},
		{"via+shm:///disk?socket=/run/v", URI{Provider: "shm", Socket: "/run/v", Export: "disk"}, ""},
		{"via+roce://10.0.0.1/disk", URI{Provider: "roce", Host: "10.0.0.1", Port: 4791, Export: "disk"}, ""},
		{"via+roce://storage:4791", URI{Provider: "roce", Host: "storage", Port: 4791}, "via+roce://storage/"},
		{"via+roce://[2001:db8::2]/disk", URI{Provider: "roce", Host: "2001:db8::2", Port: 4791, Export: "disk"}, ""},
		{"via+roce://[::]:5000/", URI{Provider: "roce", Host: "::", Port: 5000}, ""},
		{"via+roce://[fe80::1%25eth0]:1/d", URI{Provider: "roce", Host: "fe80::1%eth0", Port: 1, Export: "d"}, ""},
		{"via+roce://a,b/disk", URI{Provider: "roce", Host: "a", Others: "b", Port: 4791, Export: "disk"}, ""},
		{"via+roce://a:1,b:4791,[fd00::2]:7/", URI{Provider: "roce", Host: "a", Others: "b,[fd00::2]:7", Port: 1}, "via+roce://a:1,b,[fd00::2]:7/"},
		{"via+roce://", URI{Provider: "roce", Host: "localhost", Port: 4791}, "via+roce://localhost/"},
		{"via+roce://h/d?offloads=off", URI{Provider: "roce", Host: "h", Port: 4791, Export: "d", NoOffloads: true}, ""},
		{"via+roce://h/?offloads=auto", URI{Provider: "roce", Host: "h", Port: 4791}, "via+roce://h/"},
		{"via+roce://h/?frames=eth0,10.0.0.9/24,10.0.0.1&offloads=off", URI{
			Provider: "roce", Host: "h", Port: 4791, Frames: "eth0,10.0.0.9/24,10.0.0.1", NoOffloads: true,
		}, "via+roce://h/?frames=eth0%2C10.0.0.9/24%2C10.0.0.1&offloads=off"},
		{"via+roce://h/?frames=eth0,fd00::9", URI{Provider: "roce", Host: "h", Port: 4791, Frames: "eth0,fd00::9"}, "via+roce://h/?frames=eth0%2Cfd00%3A%3A9"},
		{"via+verbs://h:10809/?device=mlx5_0", URI{Provider: "verbs", Host: "h", Port: 10809, Device: "mlx5_0"}, "via+verbs://h/?device=mlx5_0"},
		{"via+roce://h/?device=10.0.0.2:4791", URI{Provider: "roce", Host: "h", Port: 4791, Device: "10.0.0.2:4791"}, "via+roce://h/?device=10.0.0.2%3A4791"},
		{"via+other://h/", URI{Provider: "other", Host: "h", Port: 10809}, ""},
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
		{"nbd+vsock://host/", `"host" is not a CID`},
		{"nbd://a,b/x", `host "a,b" contains ','`},
		{"via+roce://a,/x", "one of them is empty"},
		{"via+roce://a,b c/x", "space"},
		{"via+roce://a,b:x/x", `port "x"`},
		{"via+roce://a,b,c,d,e,f,g,h,i/x", "8 hosts"},
		{"nbd+vsock://4294967296/", "is not a CID"},
		{"nbd+vsock://-1/", "is not a CID"},
		{"nbd+vsock://[::1]/", "is not a CID"},
		{"nbd+vsock://2:65536/", `port "65536"`},
		{"nbd+vsock:///?socket=/x", `unknown parameter "socket" for nbd+vsock`},
		{"nbd+unix:///disk", "append ?socket=PATH"},
		{"nbd+unix:///disk?socket=", "the parameter socket is empty"},
		{"nbd+unix:///?socket=a&socket=b", "stands twice"},
		{"nbd+unix:///?socket=" + strings.Repeat("s", 108), "the socket path has 108 bytes"},
		{"nbd+unix:///?socket=a%00b", "zero byte"},
		{"nbd+unix:///?socket=%zz", "not percent-encoded right"},
		{"nbd+unix://host/?socket=s", "nbd+unix has no host"},
		{"via+shm://host/?socket=s", "via+shm has no host"},
		{"via+roce:///?socket=s", `unknown parameter "socket" for via+roce`},
		{"via+roce://h/?frames=eth0", "INTERFACE,ADDRESS[/BITS][,GATEWAY]"},
		{"via+roce://h/?frames=eth0,10.0.0.300", `"10.0.0.300" is no IP address`},
		{"via+roce://h/?frames=eth0,10.0.0.3/33", `"10.0.0.3/33" is no IP address`},
		{"via+roce://h/?frames=eth0,10.0.0.3,fd00::1", `"fd00::1" is no address like 10.0.0.3`},
		{"via+roce://h/?frames=a,10.0.0.3&frames=b,10.0.0.3", "stands twice"},
		{"via+roce://h/?offloads=on", "offloads is auto or off"},
		{"via+shm:///?socket=s&offloads=off", `unknown parameter "offloads" for via+shm`},
		{"via+roce://h:70000/", "port \"70000\" is not in 0…65535"},
		{"via+roce://::1/", "an IPv6 address needs brackets"},
		{"via+roce://[10.0.0.1]/", "not an IPv6 address"},
		{"nbd://h/?socket=s", `unknown parameter "socket" for nbd`},
		{"nbd://h/?tls-certificates=x", `unknown parameter "tls-certificates" for nbd`},
		{"nbds://h/?tls-certificates=x&tls-certificates=y", "stands twice"},
		{"nbds://h/?tls-hostname=", "is empty"},
		{"nbds://h/?tls-verify-peer=perhaps", "true or false"},
		{"nbds://h/?tls-certificates=" + strings.Repeat("f", 1025), "1025 bytes"},
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
		"via+roce://h/":          {"udp", "h:4791"},
		"via+roce://[fd00::1]/x": {"udp", "[fd00::1]:4791"},
		"via+verbs://h/":         {"tcp", "h:10809"},
		"nbd+vsock:///x":         {"vsock", "2:10809"},
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

// Some URIs are for listening alone and some for connecting, and the other way
// round.
func TestEndpointsByUse(t *testing.T) {
	for _, c := range []struct{ in, remote, listen string }{
		{"via+roce://10.0.0.1/", "", ""},
		{"via+roce://storage/disk", "", "names no export"},
		{"via+roce://0.0.0.0/", "0.0.0.0 is only good to listen on", ""},
		{"via+roce://[::]/", ":: is only good to listen on", ""},
		{"nbd://0.0.0.0/", "", ""},
		{"nbd://h:0/", "port 0 is only good to listen on", ""},
		{"nbd+vsock://3/", "", ""},
		{"nbd+vsock://4294967295/", "only good to listen on", ""},
		{"nbd+vsock://0/", "CID 0 is reserved", ""},
		{"nbd+vsock://3:0/", "port 0", "leave it out for 10809"},
		{"nbds+vsock://3/", "tls-certificates=FOLDER", "set nbd.tls to require"},
		{"via+roce://h:0/", "port 0 is only good to listen on", "leave it out for 4791"},
		{"via+roce://224.0.0.1/", "224.0.0.1 is not the address of one host", "224.0.0.1 is not the address of one host"},
		{"via+roce://[ff02::1]/", "ff02::1 is not the address of one host", "ff02::1 is not the address of one host"},
		{"via+roce://255.255.255.255/", "not the address of one host", "not the address of one host"},
		{"nbds://h/", "tls-certificates=FOLDER", "set nbd.tls to require"},
	} {
		u, err := ParseURI(c.in)
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range []struct {
			name, want string
			got        error
		}{{"connect to", c.remote, u.CheckRemote()}, {"listen at", c.listen, u.checkListen(NBD{})}} {
			if (side.got == nil) != (side.want == "") || side.got != nil && !strings.Contains(side.got.Error(), side.want) {
				t.Errorf("%s %s: %v, want %q", side.name, c.in, side.got, side.want)
			}
		}
	}
}

// A URI that ParseURI accepts it accepts again, with the same meaning, after
// String.
func FuzzParseURI(f *testing.F) {
	for _, seed := range []string{
		"nbd://example.org:1/disk", "nbd://[fe80::1%25eth0]/a%20b", "nbd+unix:///?socket=/s",
		"nbds+unix:///x?socket=%2f", "via+shm:///x?socket=s&", "via+roce://10.0.0.1", "via+x-y://h:10809//%e2%82%ac",
		"nbd://%", "nbd://h/?a=b", "nbd+vsock:///x", "nbds+vsock://4294967295:65535/?tls-verify-peer=0", "nbd+vsock://00:1", "://", "nbd://[::ffff:1.2.3.4]:1/",
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
