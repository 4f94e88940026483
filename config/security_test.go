package config

import (
	"errors"
	"strings"
	"testing"
)

// A target that would give disks away, or promise what it cannot do, does not
// start, and the complaint names the key.
func TestUnsafeMixes(t *testing.T) {
	const secure, folder = "nbd: {tls: require, tls_certificates: c}\n", "certificates: c, "
	const roce, verbs, loopback, shm = "listen: ['via+roce://192.0.2.1/']", "listen: ['via+verbs://192.0.2.1/']", "listen: ['via+roce://127.0.0.1/']", "listen: ['via+shm:///?socket=/v']"
	for _, c := range []struct{ file, key string }{
		{"target: {" + roce + "}", "target.listen[0]"},
		{"target: {" + verbs + "}", "target.listen[0]"},
		{"target: {security: off, " + folder + roce + "}", "target.listen[0]"},
		{"target: {security: off, " + roce + "}", "target.listen[0]"},
		{"insecure: true\ntarget: {security: off, " + folder + roce + "}", ""},
		{"insecure: true\ntarget: {" + roce + "}", ""},
		{"target: {" + folder + roce + "}", ""},
		{"target: {" + folder + verbs + "}", ""},
		{"target: {security: require, " + folder + roce + "}", ""},
		{"target: {security: require, " + folder + loopback + "}", ""},
		{"target: {security: require, " + shm + "}", ""}, // the kernel says who it is
		{"target: {security: require, " + roce + "}", "target.security"},
		{"insecure: true\ntarget: {security: require, " + roce + "}", "target.security"},
		{"target: {security: require, " + loopback + "}", "target.security"},
		{secure + "target: {" + roce + "}", ""},
		{secure + "target: {" + loopback + "}", "nbd.tls"},
		{secure + "target: {security: require, " + loopback + "}", ""},
		{"target: {" + folder + roce + ", exports: [{name: a, backend: 'null:1M', clients: [alice]}]}", ""},
		{"target: {" + folder + loopback + ", exports: [{name: a, backend: 'null:1M', clients: ['user:root']}]}", "target.exports[0]"},
		{"insecure: true\ntarget: {security: off, " + roce + ", exports: [{name: a, backend: 'null:1M', clients: ['user:root']}]}", "target.exports[0]"},
		{secure + "target: {security: off, " + roce + "}", "target.listen[0]"},
		{"nbd: {tls: require}\ntarget: {" + folder + roce + "}", ""},
		{"target: {copy_mode: zerocopy, " + folder + roce + "}", "target.copy_mode"},
		{"insecure: true\ntarget: {copy_mode: zerocopy, " + folder + roce + "}", "target.copy_mode"},
		{"target: {copy_mode: zerocopy, security: require, " + folder + loopback + "}", "target.copy_mode"},
		{"target: {copy_mode: zerocopy, " + folder + loopback + "}", ""},
		{"target: {copy_mode: zerocopy, " + folder + shm + "}", ""},
		{"attach: {copy_mode: zerocopy, uri: 'via+roce://h/a?tls-certificates=c'}", "attach.copy_mode"},
		{"attach: {copy_mode: zerocopy, certificates: c, uri: 'via+roce://h/a'}", "attach.copy_mode"},
		{"attach: {copy_mode: zerocopy, certificates: c, uri: 'via+shm:///a?socket=/v'}", ""},
		{"attach: {copy_mode: zerocopy, uri: 'via+roce://h/a'}", ""},
		{"attach: {certificates: c, uri: 'via+roce://h/a'}", ""},
	} {
		want := c.key
		if want != "" {
			want += ": "
		}
		checkUnsafe(t, c.file, c.key != "", want)
	}
	for file, key := range map[string]string{
		"target: {security: perhaps}":                                          "target.security: must be auto, require or off",
		"target: {listen: ['via+roce://h/?tls-certificates=c']}":               "target.listen[0]: a URI to listen on has no TLS parameters: set target.certificates",
		"attach: {target_name: t, uri: 'via+roce://h/a'}":                      "attach.uri: the target shows its name to",
		"attach: {uri: 'via+shm:///a?socket=/v&tls-certificates=c'}":           "attach.uri: ",
		"attach: {uri: 'via+roce://h/a?tls-certificates=c&tls-verify-peer=0'}": "attach.uri: ",
	} {
		_, err := Load(write(t, "viablk.yaml", file), nil, nil)
		var bad *Error
		if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), key) {
			t.Errorf("%s: got %v, want %s…", file, err, key)
		}
	}
}

func TestRemote(t *testing.T) {
	for _, c := range []struct{ uri, certificates, name, want, server string }{
		{"via+roce://h/a", "", "", "via+roce://h/a", "h"},
		{"via+roce://h/a", "c", "", "via+roce://h/a?tls-certificates=c", "h"},
		{"via+roce://h/a", "c", "n", "via+roce://h/a?tls-certificates=c&tls-hostname=n", "n"},
		{"via+verbs://h/a?tls-certificates=x&tls-hostname=y", "c", "n", "via+verbs://h/a?tls-certificates=x&tls-hostname=y", "y"},
		{"via+roce://[2001:db8::1]/a", "c", "", "via+roce://[2001:db8::1]/a?tls-certificates=c", "2001:db8::1"},
		{"via+shm:///a?socket=/v", "c", "n", "via+shm:///a?socket=/v", "localhost"},
	} {
		u, err := Attach{URI: c.uri, Certificates: c.certificates, TargetName: c.name}.Remote()
		if err != nil || u.String() != c.want || u.ServerName() != c.server || u.CheckRemote() != nil {
			t.Errorf("%s: got %v for %q, %v, %v", c.uri, u, u.ServerName(), err, u.CheckRemote())
		}
		if peer := u.Peer(); peer.Certificates != "" || peer.Hostname != "" {
			t.Errorf("%v: others see %v", u, peer)
		}
	}
}

func TestAccess(t *testing.T) {
	c := Default()
	c.Target.Certificates, c.NBD.TLS = "c", "require"
	for uri, want := range map[string]string{
		"via+roce://192.0.2.1/":  "certificates of the authority in c",
		"nbd://192.0.2.1/":       "certificates of the authority in c",
		"via+roce://127.0.0.1/":  "users of this host",
		"via+shm:///?socket=/v":  "users who may open the socket",
		"nbd+unix:///?socket=/v": "certificates of the authority in c",
		"via+verbs://192.0.2.1/": "certificates of the authority in c",
	} {
		u, err := ParseURI(uri)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Access(u); got != want {
			t.Errorf("%s: got %q", uri, got)
		}
	}
	c.Target.Security, c.NBD.TLS = "off", "off"
	for _, uri := range []string{"via+roce://192.0.2.1/", "nbd://192.0.2.1/"} {
		if u, err := ParseURI(uri); err != nil || c.Access(u) != "any host that reaches it" {
			t.Errorf("%s: got %q, %v", uri, c.Access(u), err)
		}
	}
}
