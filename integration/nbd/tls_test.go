package nbd

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// tlsWays are the ways whose last step is under TLS: a target, and a chain.
func tlsWays(t *testing.T, pki string, d testbed.Disk, test func(t *testing.T, uri string)) {
	secure := []string{"--tls", "require", "--tls-certificates", filepath.Join(pki, "server")}
	uriOf := func(p *testbed.Process) string {
		return p.URI(d.Name, "nbds") + "?tls-certificates=" + filepath.Join(pki, "alice")
	}
	t.Run("target", func(t *testing.T) {
		p := testbed.StartBinary(t, testbed.Program(t), append([]string{
			"target", "--listen", "nbds://127.0.0.1:0",
			"--admin", filepath.Join(testbed.Folder(t), "target"), "--export", d.Name + "=" + d.Spec,
		}, secure...)...)
		test(t, uriOf(p))
	})
	t.Run("chain", func(t *testing.T) {
		p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), d)
		a := testbed.StartBinary(t, testbed.Program(t), append([]string{
			"attach", p.URI(d.Name, "via+shm"), "--nbd", "nbds://127.0.0.1:0/" + d.Name,
			"--admin", filepath.Join(testbed.Folder(t), "attach"),
		}, secure...)...)
		test(t, uriOf(a))
	})
}

func TestClientsUnderTLS(t *testing.T) {
	folder := testbed.Certificates(t, "alice")
	data := append(testbed.RandomBytes(9<<20), testbed.SparseBytes(3<<20+512)...)
	source := testbed.WriteFile(t, "source", data)
	tlsWays(t, folder, testbed.Disk{Name: "disk", Spec: fmt.Sprintf("memory:%d", len(data))}, func(t *testing.T, uri string) {
		plain := "nbd" + strings.TrimPrefix(uri[:strings.IndexByte(uri, '?')], "nbds")
		if out := testbed.Run(t, "nbdinfo", uri); !strings.Contains(out, "with TLS") {
			t.Errorf("nbdinfo: %s", out)
		}
		testbed.Run(t, "nbdcopy", "--flush", "--connections=4", source, uri)
		back := testbed.WriteFile(t, "back", nil)
		testbed.Run(t, "nbdcopy", "--connections=4", "--requests=32", uri, back)
		testbed.CheckFile(t, back, data)

		host := strings.Split(strings.TrimSuffix(strings.TrimPrefix(plain, "nbd://"), "/disk"), ":")
		qemu := []string{
			"--object", "tls-creds-x509,id=t,endpoint=client,verify-peer=on,dir=" + filepath.Join(folder, "alice"),
			"--image-opts", fmt.Sprintf("driver=raw,file.driver=nbd,file.host=%s,file.port=%s,file.export=disk,file.tls-creds=t", host[0], host[1]),
		}
		if out := testbed.Run(t, "qemu-img", append([]string{"info"}, qemu...)...); !strings.Contains(out, "virtual size: ") {
			t.Errorf("qemu-img info: %s", out)
		}
		testbed.Run(t, "qemu-io", append(qemu, "-c", "write -P 5 1M 1M", "-c", "read -P 5 1M 1M", "-c", "flush")...)

		for _, refused := range []struct{ what, uri string }{
			{"in the clear", plain},
			{"without certificate", "nbds" + strings.TrimPrefix(plain, "nbd") + "?tls-certificates=" + filepath.Join(folder, "ca")},
		} {
			c := testbed.StartTool(t, "nbdinfo", "--size", refused.uri)
			if code := c.Wait(t, testbed.ToolLimit); code == 0 {
				t.Errorf("nbdinfo %s: %s", refused.what, c.Output())
			}
		}
	})
}

// TestVerifyUnderTLS has fio write and check what it wrote, through a proxy:
// fio cannot be told where its certificates are.
func TestVerifyUnderTLS(t *testing.T) {
	testbed.Requires(t, "fio")
	const fio = `fio --name=v --ioengine=nbd --uri="$uri" --rw=randrw --bsrange=512-256k --size=64M --io_size=96M ` +
		`--iodepth=16 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --minimal`
	tlsWays(t, testbed.Certificates(t, "alice"), testbed.Disk{Name: "disk", Spec: "memory:64MiB"}, func(t *testing.T, uri string) {
		uri, certificates, _ := strings.Cut(uri, "?tls-certificates=")
		testbed.Run(t, "nbdkit", "-U", "-", "nbd", "uri="+uri, "tls=require", "tls-certificates="+certificates, "--run", fio)
	})
}
