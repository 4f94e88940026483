package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/pki"
)

// certificates makes an authority, and folders of certificates for a server and
// for clients of these names.
func certificates(t testing.TB, clients ...string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	must(t, pki.Init(at("ca"), "test authority", time.Hour))
	must(t, pki.Issue(at("ca"), pki.Server, []string{"localhost", "127.0.0.1"}, at("server"), time.Hour))
	for _, name := range clients {
		must(t, pki.Issue(at("ca"), pki.Client, []string{name}, at(name), time.Hour))
	}
	return folder
}

// tlsWays are the ways whose last step is under TLS: a target, and a chain.
func tlsWays(t *testing.T, pki string, d disk, test func(t *testing.T, uri string)) {
	secure := []string{"--tls", "require", "--tls-certificates", filepath.Join(pki, "server")}
	uriOf := func(p *process) string {
		return p.uri(d.name, "nbds") + "?tls-certificates=" + filepath.Join(pki, "alice")
	}
	t.Run("target", func(t *testing.T) {
		p := startBinary(t, program(t), append([]string{
			"target", "--listen", "nbds://127.0.0.1:0",
			"--admin", filepath.Join(folder(t), "target"), "--export", d.name + "=" + d.spec,
		}, secure...)...)
		test(t, uriOf(p))
	})
	t.Run("chain", func(t *testing.T) {
		p := startTarget(t, program(t), "via+shm:///?socket="+filepath.Join(folder(t), "v"), d)
		a := startBinary(t, program(t), append([]string{
			"attach", p.uri(d.name, "via+shm"), "--nbd", "nbds://127.0.0.1:0/" + d.name,
			"--admin", filepath.Join(folder(t), "attach"),
		}, secure...)...)
		test(t, uriOf(a))
	})
}

func TestClientsUnderTLS(t *testing.T) {
	folder := certificates(t, "alice")
	data := append(randomBytes(9<<20), sparseBytes(3<<20+512)...)
	source := writeFile(t, "source", data)
	tlsWays(t, folder, disk{"disk", fmt.Sprintf("memory:%d", len(data))}, func(t *testing.T, uri string) {
		plain := "nbd" + strings.TrimPrefix(uri[:strings.IndexByte(uri, '?')], "nbds")
		if out := run(t, "nbdinfo", uri); !strings.Contains(out, "with TLS") {
			t.Errorf("nbdinfo: %s", out)
		}
		run(t, "nbdcopy", "--flush", "--connections=4", source, uri)
		back := writeFile(t, "back", nil)
		run(t, "nbdcopy", "--connections=4", "--requests=32", uri, back)
		checkFile(t, back, data)

		host := strings.Split(strings.TrimSuffix(strings.TrimPrefix(plain, "nbd://"), "/disk"), ":")
		qemu := []string{
			"--object", "tls-creds-x509,id=t,endpoint=client,verify-peer=on,dir=" + filepath.Join(folder, "alice"),
			"--image-opts", fmt.Sprintf("driver=raw,file.driver=nbd,file.host=%s,file.port=%s,file.export=disk,file.tls-creds=t", host[0], host[1]),
		}
		if out := run(t, "qemu-img", append([]string{"info"}, qemu...)...); !strings.Contains(out, "virtual size: ") {
			t.Errorf("qemu-img info: %s", out)
		}
		run(t, "qemu-io", append(qemu, "-c", "write -P 5 1M 1M", "-c", "read -P 5 1M 1M", "-c", "flush")...)

		for _, refused := range []struct{ what, uri string }{
			{"in the clear", plain},
			{"without certificate", "nbds" + strings.TrimPrefix(plain, "nbd") + "?tls-certificates=" + filepath.Join(folder, "ca")},
		} {
			c := startTool(t, "nbdinfo", "--size", refused.uri)
			if code := c.wait(t, toolLimit); code == 0 {
				t.Errorf("nbdinfo %s: %s", refused.what, c.output())
			}
		}
	})
}

// TestVerifyUnderTLS has fio write and check what it wrote, through a proxy: fio
// cannot be told where its certificates are.
func TestVerifyUnderTLS(t *testing.T) {
	requires(t, "fio")
	const fio = `fio --name=v --ioengine=nbd --uri="$uri" --rw=randrw --bsrange=512-256k --size=64M --io_size=96M ` +
		`--iodepth=16 --verify=crc32c --verify_fatal=1 --minimal`
	tlsWays(t, certificates(t, "alice"), disk{"disk", "memory:64MiB"}, func(t *testing.T, uri string) {
		uri, certificates, _ := strings.Cut(uri, "?tls-certificates=")
		run(t, "nbdkit", "-U", "-", "nbd", "uri="+uri, "tls=require", "tls-certificates="+certificates, "--run", fio)
	})
}
