package nbd

import (
	"fmt"
	"os"
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

// resizing is what a client sees of a file that grows and shrinks under it: it
// keeps the size that it was told, the next client is told the new one, and
// nothing but a request behind the end fails.
const resizing = `
import errno, os

def client():
    c = nbd.NBD()
    c.set_strict_mode(0)
    c.connect_uri(%[1]q)
    return c

def refused(request, want):
    try:
        request()
    except nbd.Error as e:
        assert e.errnum == want, e
        return
    assert False, "it is not refused"

MiB = 1 << 20
old = client()
assert old.get_size() == MiB
os.truncate(%[2]q, 2 * MiB + 1000)
assert old.get_size() == MiB
refused(lambda: old.pread(512, MiB), errno.EINVAL)
refused(lambda: old.pwrite(b"a" * 512, MiB), errno.ENOSPC)
refused(lambda: old.zero(MiB, MiB), errno.ENOSPC)
grown = client()
assert grown.get_size() == 2 * MiB + 512, grown.get_size()
grown.pwrite(b"b" * 512, 2 * MiB)
assert grown.pread(512, 2 * MiB) == b"b" * 512
refused(lambda: grown.pread(512, 2 * MiB + 512), errno.EINVAL)
old.pwrite(b"c" * 512, 0)

os.truncate(%[2]q, MiB // 2)
for c in old, grown:
    for at in MiB // 2, MiB - 512:
        refused(lambda: c.pread(512, at), errno.EINVAL)
        refused(lambda: c.pwrite(b"d" * 512, at), errno.ENOSPC)
        refused(lambda: c.pwrite(b"d" * 512, at, nbd.CMD_FLAG_FUA), errno.ENOSPC)
        refused(lambda: c.zero(512, at), errno.ENOSPC)
        refused(lambda: c.trim(512, at), errno.EINVAL)
    assert c.pread(512, 0) == b"c" * 512
    c.flush()
shrunk = client()
assert shrunk.get_size() == MiB // 2
assert shrunk.pread(512, MiB // 2 - 512) == bytes(512)
for c in old, grown, shrunk:
    c.shutdown()
`

func TestClientsOfAFileThatIsResized(t *testing.T) {
	testbed.Requires(t, "nbdsh")
	for _, options := range []string{"", "?direct=1"} {
		t.Run(options, func(t *testing.T) {
			image := testbed.SparseFile(t, 1<<20)
			s := testbed.Ways[0].Serve(t, testbed.Program(t), testbed.Disk{Name: "disk", Spec: "file:" + image + options})
			testbed.Run(t, "nbdsh", "-c", fmt.Sprintf(resizing, s.URI, image))
			st, err := os.Stat(image)
			testbed.Must(t, err)
			if st.Size() != 512<<10 {
				t.Errorf("the file has %d bytes: a request has resized it", st.Size())
			}
		})
	}
}
