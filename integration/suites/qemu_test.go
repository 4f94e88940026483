//go:build suites

package suites

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

// iotestLimit bounds a case of QEMU's suite.
const iotestLimit = 10 * time.Minute

// iotests are the cases of QEMU's suite for raw images over NBD that are not
// about QEMU's own server.
var iotests = strings.Fields("001 002 003 004 008 009 010 011 032 033 077 083 104 123 197 208 215 218 277")

// iotestReasons are why some do not apply.
var iotestReasons = map[string]string{
	"083": "its server is one of the suite's that breaks rules: it is about QEMU as a client",
	"208": "its server is in the emulator",
	"218": "it starts no server",
	"277": "its server is one of the suite's that breaks rules: it is about QEMU as a client",
}

// iotestSource returns the folder of QEMU's suite, in the version of the
// qemu-img and qemu-io that are installed. It gives servers a second to start,
// which may be too little or too much: here it waits for them.
func iotestSource(t *testing.T) string {
	version := succeed(t, fetchLimit, keep, nil, "dpkg-query", "-W", "-f", "${source:Version}", "qemu-utils")
	parts := []string{"--wildcards", "*/tests/qemu-iotests", "*/python"}
	folder := sources(t, "qemu", "="+version, parts, func(t *testing.T, folder string) {
		path := filepath.Join(folder, "tests/qemu-iotests/common.rc")
		text, err := os.ReadFile(path)
		testbed.Must(t, err)
		const old = "sleep 1 # FIXME: qemu-nbd needs to be listening before we continue"
		if strings.Count(string(text), old) != 1 {
			t.Fatalf("%s does not wait for servers as it used to", path)
		}
		wait := `until [ -s "${QEMU_TEST_DIR}/qemu-nbd.pid" ]; do sleep 0.1; done`
		testbed.Must(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, wait, 1)), 0o600))
	})
	return filepath.Join(folder, "tests/qemu-iotests")
}

// qemu is a script that runs QEMU as the suite wants it: Debian's is built
// without the accelerator qtest, which is for machines that execute nothing.
const qemu = `#!/bin/bash
args=("$@")
for i in "${!args[@]}"; do
	args[i]=${args[i]//accel=qtest/accel=tcg}
	[ "${args[i]}" != qtest ] || args[i]=tcg
done
exec /usr/bin/qemu-system-x86_64 "${args[@]}"
`

// TestQemu runs cases of QEMU's suite, whose server is a target, or the
// initiator of one.
func TestQemu(t *testing.T) {
	source := iotestSource(t)
	path := shims(t)
	testbed.Must(t, os.WriteFile(filepath.Join(path, "qemu"), []byte(qemu), 0o755))
	inEachWay(t, "qemu-iotests", iotests, iotestReasons, func(t *testing.T, w way, name string) {
		n := newNotes(t, path, w)
		images := t.TempDir()
		env := append(
			n.environment(t), "QEMU_PROG="+filepath.Join(path, "qemu"), "QEMU_NBD_PROG="+filepath.Join(path, "qemu-nbd"),
			"QEMU_IMG_PROG=/usr/bin/qemu-img", "QEMU_IO_PROG=/usr/bin/qemu-io", "QSD_PROG=/usr/bin/qemu-storage-daemon",
			"PYTHON=/usr/bin/python3", "TEST_DIR="+images, "SOCK_DIR="+testbed.Folder(t),
		)
		out, code := run(t, host(t), iotestLimit, source, env, "/usr/bin/python3", "./check", "-raw", "-nbd", name)
		if code != 0 || !strings.Contains(out, "\nPassed all 1 iotests\n") {
			t.Errorf("exit code %d", code)
		}
		n.check(t, "")
		if t.Failed() {
			t.Logf("the servers that it started:\n%s\nthe end of its output:\n%s", n.text, tail(out))
		}
	})
}
