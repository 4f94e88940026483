package config

import "testing"

// TestRedacted: what is shown of a disk has no password, and all else.
func TestRedacted(t *testing.T) {
	for backend, want := range map[string]string{
		"file:/srv/a.img?direct=1":                             "",
		"nbd://host:10809/a?reconnect=5s":                      "",
		"nbds://host:10809/a?tls-certificates=/etc/keys":       "",
		"rbd:pool/image?user=admin&conf=/etc/ceph/keyring=1":   "",
		"nbd://alice:secret@host:10809/a":                      "nbd://alice:***@host:10809/a",
		"run:[nbdkit curl https://a:b@c/d]":                    "run:[nbdkit curl https://a:***@c/d]",
		"run:[nbdkit ssh password=hunter2 host=x]":             "run:[nbdkit ssh password=*** host=x]",
		"run:[nbdkit curl url=https://x/y?Token=abc&z=1]":      "run:[nbdkit curl url=https://x/y?Token=***&z=1]",
		"delay:read=1ms:nbd://h/a?secret=1&key=2&reconnect=1s": "delay:read=1ms:nbd://h/a?secret=***&key=***&reconnect=1s",
	} {
		if want == "" {
			want = backend
		}
		if got := (Export{Backend: backend}).Redacted().Backend; got != want {
			t.Errorf("%s: shown as %s, want %s", backend, got, want)
		}
	}
}
