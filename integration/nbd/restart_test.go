package nbd

import (
	"flag"
	"path/filepath"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
)

var restarts = flag.Int("nbd.restarts", 2, "how often a server is replaced under QEMU, on each way")

// TestServerIsReplacedUnderQEMU: a client that reconnects notices nothing when
// the server ends in peace and another takes its place, nor when the target of
// its remote disk does. QEMU reports every error of a request, ESHUTDOWN too.
func TestServerIsReplacedUnderQEMU(t *testing.T) {
	for _, way := range []struct {
		name      string
		takesOver bool // the server from the one before
		start     func(t *testing.T) (start func() *testbed.Process, path string)
	}{
		{"target", false, func(t *testing.T) (func() *testbed.Process, string) {
			path, d := filepath.Join(testbed.Folder(t), "n"), testbed.FileDisk(16<<20)(t)
			return func() *testbed.Process {
				return testbed.StartTarget(t, testbed.Program(t), "nbd+unix:///?socket="+path, d)
			}, path
		}},
		{"target, by takeover", true, func(t *testing.T) (func() *testbed.Process, string) {
			path, d, admin := filepath.Join(testbed.Folder(t), "n"), testbed.FileDisk(16<<20)(t), filepath.Join(testbed.Folder(t), "a")
			args := []string{"target", "--listen", "nbd+unix:///?socket=" + path, "--export", d.Name + "=" + d.Spec, "--admin", admin}
			first := true
			return func() *testbed.Process {
				if first {
					first = false
					return testbed.StartBinary(t, testbed.Program(t), args...)
				}
				return testbed.StartBinary(t, testbed.Program(t), append(args, "--takeover", admin)...)
			}, path
		}},
		{"attach", false, func(t *testing.T) (func() *testbed.Process, string) {
			path := filepath.Join(testbed.Folder(t), "n")
			p := testbed.StartTarget(t, testbed.Program(t), "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), testbed.FileDisk(16<<20)(t))
			return func() *testbed.Process {
				return testbed.StartBinary(t, testbed.Program(t), "attach", p.URI("disk", "via+shm"),
					"--nbd", "nbd+unix:///disk?socket="+path, "--admin", filepath.Join(testbed.Folder(t), "a"))
			}, path
		}},
		{"target behind attach", false, func(t *testing.T) (func() *testbed.Process, string) {
			path, d := filepath.Join(testbed.Folder(t), "n"), testbed.FileDisk(16<<20)(t)
			listen, attached := "via+shm:///?socket="+filepath.Join(testbed.Folder(t), "v"), false
			return func() *testbed.Process {
				p := testbed.StartTarget(t, testbed.Program(t), listen, d)
				if !attached {
					attached = true
					testbed.StartBinary(t, testbed.Program(t), "attach", p.URI("disk", "via+shm"),
						"--nbd", "nbd+unix:///disk?socket="+path, "--admin", filepath.Join(testbed.Folder(t), "a"))
				}
				return p
			}, path
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			start, path := way.start(t)
			p := start()
			over, clients := make(chan struct{}), make(chan int, 1)
			go func() { // a client after the other
				for n := 0; ; n++ {
					select {
					case <-over:
						clients <- n
						return
					default:
					}
					c := testbed.NewTool(nil, testbed.Locate("qemu-img"), "bench", "-w", "-c", "1500", "-d", "16", "-s", "4k", "-S", "68k", "--flush-interval", "300",
						"--image-opts", "driver=raw,file.driver=nbd,file.export=disk,file.reconnect-delay=60,file.open-timeout=60,"+
							"file.server.type=unix,file.server.path="+path)
					if err := c.Cmd.Run(); err != nil {
						t.Errorf("%s: %v\n%s", c, err, c.Stderr.String())
						clients <- n
						return
					}
				}
			}()
			for range *restarts {
				testbed.Eventually(t, "writes", func() (any, bool) {
					n := writes(p.Status())
					return n, n > 100 || t.Failed()
				})
				if before := p; way.takesOver {
					p = start()
					if code := before.ExitCode(); code != 0 {
						t.Errorf("the target ends with exit code %d", code)
					}
				} else {
					p.Stop()
					p = start()
				}
			}
			close(over)
			select {
			case n := <-clients:
				if n == 0 {
					t.Error("no client came")
				}
			case <-time.After(2 * testbed.ToolLimit):
				t.Errorf("a client hangs\n%s", p.Stacks())
				<-clients // it gives up: there is no server
			}
		})
	}
}

// writes returns how many writes a process has served.
func writes(st testbed.Status) uint64 {
	if st.NBD != nil {
		return st.NBD.Total.Writes
	}
	return st.Targets[0].Exports[0].Stats.Writes
}
