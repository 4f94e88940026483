package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// words splits a command line.
func words(line string) []string { return strings.Fields(line) }

func TestTranslations(t *testing.T) {
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, make([]byte, 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]command{
		"nbdkit -s -v --exit-with-parent memory 1M": {
			exports: []export{{Backend: "memory:1048576"}}, stdio: true, exitWithParent: true,
		},
		"nbdkit -fv -U /s -P /p -r null size=2k": {
			exports: []export{{Backend: "null:2048", ReadOnly: true}}, socket: "/s", pidFile: "/p",
		},
		"nbdkit --port=7 --tls=require --tls-certificates /pki --tls-verify-peer null": {
			exports: []export{{Backend: "null:512"}}, port: "7", background: true,
			tls: tlsOptions{mode: "require", certificates: "/pki", verifyPeer: true},
		},
		"nbdkit -U - memory 1s --filter=delay delay-read=10 --run true": {
			exports: []export{{Backend: "delay:read=10s:memory:512"}}, scriptSocket: true, script: "true",
		},
		"nbdkit -s --filter=blocksize-policy memory 1M blocksize-minimum=512 blocksize-maximum=32M blocksize-error-policy=error": {
			exports: []export{{Backend: "memory:1048576", MinimumBlock: 512, MaximumPayload: 32 << 20}}, stdio: true,
		},
		"nbdkit -s file IMAGE": {exports: []export{{Backend: "file:IMAGE"}}, stdio: true},
		"qemu-nbd --pid-file=/p -v -t -k /s -f raw -e 42 -x disk IMAGE": {
			exports: []export{{Name: "disk", Backend: "file:IMAGE"}}, socket: "/s", pidFile: "/p",
		},
		"qemu-nbd -r -D text --object tls-creds-x509,id=a,endpoint=server,dir=/pki --tls-creds a IMAGE": {
			exports: []export{{Backend: "file:IMAGE", Description: "text", ReadOnly: true, MinimumBlock: 512}},
			tls:     tlsOptions{mode: "require", certificates: "/pki", verifyPeer: true},
		},
		"nbd-server -d 0 IMAGE": {exports: []export{{Backend: "file:IMAGE"}}, stdio: true},
	} {
		args := words(strings.ReplaceAll(line, "IMAGE", image))
		got, err := parsers[args[0]](args[1:])
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		for i := range want.exports {
			want.exports[i].Backend = strings.ReplaceAll(want.exports[i].Backend, "IMAGE", image)
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n%+v, not\n%+v", line, *got, want)
		}
	}
}

// The real server runs options that viablk has no counterpart of: viablk serves
// nothing that the suite did not ask for.
func TestUntranslatableOptions(t *testing.T) {
	odd := filepath.Join(t.TempDir(), "odd")
	if err := os.WriteFile(odd, make([]byte, 1025), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"nbdkit -s sh script",
		"nbdkit -s -o memory 1M",
		"nbdkit -s --no-sr memory 1M",
		"nbdkit -s --tls=require --tls-psk=keys null",
		"nbdkit -s --filter=error memory 1M error-rate=1",
		"nbdkit -s memory 1M unknown=1",
		"nbdkit -s memory 1M unnamed",
		"nbdkit -s memory 1025",
		"nbdkit -s file " + odd,
		"nbdkit -s",
		"nbdkit -P",
		"qemu-nbd -f qcow2 image",
		"qemu-nbd -f raw -B bitmap " + odd,
		"qemu-nbd -f raw " + odd,
		"qemu-nbd -f raw --object secret,id=a " + odd,
		"nbd-server 10809 " + odd,
		"nbd-server -d -r 0 " + odd,
	} {
		args := words(line)
		if c, err := parsers[args[0]](args[1:]); !errors.Is(err, errForeign) {
			t.Errorf("%s: %+v, %v", line, c, err)
		}
	}
}

// A pattern has the offset in every eighth byte.
func TestPattern(t *testing.T) {
	t.Setenv(folderVariable, t.TempDir())
	c, err := parseNbdkit(words("-s pattern 1M"))
	if err != nil {
		t.Fatal(err)
	}
	path := strings.TrimSuffix(strings.TrimPrefix(c.exports[0].Backend, "file:"), "?readonly=1")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(content) != 1<<20 || string(content[0x12340:0x12348]) != "\x00\x00\x00\x00\x00\x01\x23\x40" {
		t.Errorf("%d bytes, %x", len(content), content[0x12340:0x12348])
	}
}
