package config

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// A listener that other hosts reach needs TLS for NBD, or an administrator who
// accepts that it has no authentication.
func TestExposure(t *testing.T) {
	const plain, secure = "{}", "{tls: require, tls_certificates: c}"
	for _, c := range []struct {
		listen, nbd string
		refused     bool
	}{
		{"nbd://127.0.0.1/", plain, false},
		{"nbd://127.99.1.2:7/", plain, false},
		{"nbd://[::1]/", plain, false},
		{"nbd://[::ffff:127.0.0.1]/", plain, false},
		{"nbd://localhost/", plain, false},
		{"nbd:///", plain, false},
		{"nbd://LocalHost/", plain, false},
		{"nbd+unix:///?socket=/s", plain, false},
		{"nbd+vsock://1/", plain, false},
		{"via+shm:///?socket=/s", plain, false},
		{"via+roce://127.0.0.1/", plain, false},
		{"via+roce://[::1]/", plain, false},
		{"nbd://0.0.0.0/", plain, true},
		{"nbd://[::]/", plain, true},
		{"nbd://192.0.2.1/", plain, true},
		{"nbd://[::ffff:192.0.2.1]/", plain, true},
		{"nbd://[fe80::1%25eth0]/", plain, true},
		{"nbd://storage.example/", plain, true},
		{"nbd://localhost.example/", plain, true},
		{"nbd://192.0.2.1/", "{tls: on, tls_certificates: c}", true},
		{"nbd+vsock:///", plain, true},
		{"nbd+vsock://3/", plain, true},
		{"via+roce://0.0.0.0/", plain, true},
		{"via+roce://192.0.2.1/", plain, true},
		{"via+roce://127.0.0.1/?frames=eth0,127.0.0.1", plain, true},
		{"via+verbs://127.0.0.1/", plain, true},
		{"via+verbs://192.0.2.1/", plain, true},
		{"nbd://192.0.2.1/", secure, false},
		{"nbds://192.0.2.1/", secure, false},
		{"nbd+vsock:///", secure, false},
		{"via+roce://192.0.2.1/", secure, false}, // the same certificates
		{"via+verbs://192.0.2.1/", secure, false},
	} {
		file := "nbd: " + c.nbd + "\ntarget: {listen: ['nbd+unix:///?socket=/first', '" + c.listen + "']}\n"
		checkUnsafe(t, file, c.refused, "target.listen[1]: any host that reaches "+parsed(t, c.listen)+" could read and write the disks")
		checkUnsafe(t, "insecure: true\n"+file, false, "")
		if u, err := ParseURI(c.listen); err == nil && !u.VIA() {
			checkUnsafe(t, "nbd: "+c.nbd+"\nattach: {nbd: '"+c.listen+"'}\n", c.refused, "attach.nbd: any host that reaches ")
		}
	}
}

// TestInClear: an NBD server of another host is in clear without TLS.
func TestInClear(t *testing.T) {
	for text, want := range map[string]bool{
		"nbd://192.0.2.1/a":                       true,
		"nbd://storage.example/a":                 true,
		"nbd://[fe80::1%25eth0]/a":                true,
		"nbd://localhost/a":                       false,
		"nbd://127.1.2.3/a":                       false,
		"nbd://[::1]/a":                           false,
		"nbd+unix:///a?socket=/s":                 false,
		"nbd+vsock://3/a":                         false,
		"nbds://192.0.2.1/a?tls-certificates=pki": false,
	} {
		u, err := ParseURI(text)
		if err != nil || u.InClear() != want {
			t.Errorf("%s: %v, %v", text, u.InClear(), err)
		}
	}
}

// An unsafe configuration is not a mistake on the command line, even if flags
// alone make it.
func TestUnsafeFlags(t *testing.T) {
	_, err := Load("", Flags{"target.listen": {Name: "--listen", Value: []string{"nbd://192.0.2.1/"}}}, nil)
	var bad *Error
	if !errors.As(err, &bad) || bad.FlagsOnly() || !strings.Contains(err.Error(), "--insecure (from --listen)") {
		t.Errorf("got %v", err)
	}
	_, err = Load("", Flags{
		"target.listen": {Name: "--listen", Value: []string{"nbd://192.0.2.1/"}},
		"insecure":      {Name: "--insecure", Value: "true"},
	}, nil)
	if err != nil {
		t.Errorf("got %v", err)
	}
}

// parsed returns a URI as it is printed.
func parsed(t *testing.T, uri string) string {
	u, err := ParseURI(uri)
	if err != nil {
		t.Fatal(err)
	}
	return u.String()
}

// checkUnsafe checks whether a configuration is refused as unsafe alone, and
// first for a reason that begins with want.
func checkUnsafe(t *testing.T, file string, refused bool, want string) {
	t.Helper()
	_, err := Load(write(t, "viablk.yaml", file), nil, nil)
	if !refused {
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		return
	}
	var bad *Error
	if !errors.As(err, &bad) || !strings.HasPrefix(err.Error(), want) ||
		slices.ContainsFunc(bad.Problems, func(p Problem) bool { return !p.Unsafe }) {
		t.Errorf("%s: got %v, want %s…", file, err, want)
	}
}
