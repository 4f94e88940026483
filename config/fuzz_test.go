package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzSecurity loads files of any content. A complaint is of one line for each
// problem; and what is accepted gives no disk to other hosts without
// certificates, unless it says insecure.
func FuzzSecurity(f *testing.F) {
	for at, text := range []string{
		"target: {security: require, certificates: c, listen: ['via+roce://192.0.2.1/', 'nbd+unix:///?socket=/s']}",
		"nbd: {tls: require, tls_certificates: c, tls_verify_peer: true}\ntarget: {listen: ['nbds://192.0.2.1/']}",
		"insecure: true\ntarget: {listen: ['via+verbs://192.0.2.1/', 'nbd://[::]:0/', 'nbd+vsock://2/']}",
		"attach: {uri: 'via+roce://h/a?tls-certificates=c&tls-hostname=n', certificates: c, target_name: n, nbd: 'nbd://127.0.0.1/'}",
		"target: {exports: [{name: a, backend: 'null:1M', clients: [alice, 'user:root', 'uid:0'], clients_read_only: []}, b=memory:1M]}",
		"a: &a [*a]\ntarget: *a", "target: [1]\nnbd: text", "\x00", "? {a: b}\n: c",
		"[target]\nsecurity = \"off\"\nlisten = [\"via+roce://192.0.2.1/?frames=eth0,192.0.2.1/24\"]",
		`{"target": {"security": 1, "certificates": [], "listen": "nbd://192.0.2.1/"}}`,
	} {
		f.Add(byte(at), text)
		f.Add(byte(at)+1, text)
		f.Add(byte(at)+2, text)
	}
	folder := f.TempDir()
	f.Fuzz(func(t *testing.T, kind byte, text string) {
		path := filepath.Join(folder, "c."+[]string{"yaml", "toml", "json"}[kind%3])
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := Load(path, nil, nil)
		var bad *Error
		switch {
		case errors.As(err, &bad):
			for _, p := range bad.Problems {
				if p.Message == "" {
					t.Errorf("an empty complaint about %q", p.Key)
				}
			}
			return
		case err != nil:
			t.Fatalf("%v is not about the content", err)
		}
		c := e.Config
		for _, listen := range append([]string{c.Attach.NBD}, c.Target.Listen...) {
			u, err := ParseURI(listen)
			switch {
			case listen == "":
			case err != nil:
				t.Errorf("%q is accepted: %v", listen, err)
			case c.Insecure || u.Local():
			case u.VIA() && c.VIACertificates() != "" && c.Target.Security != SecurityOff:
			case !u.VIA() && c.NBD.TLS == "require":
			default:
				t.Errorf("any host that reaches %s gets the disks", u)
			}
		}
	})
}
