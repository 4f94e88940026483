//go:build ceph && rbd && cgo

package ceph

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/integration/testbed"
	"github.com/viablk/viablk/internal/block"
)

// commandLimit bounds a command of Ceph, and how long a daemon takes to be
// ready.
const commandLimit = time.Minute

// configuration is that of the cluster: folder, fsid, port of the monitor.
// There is one copy of everything, so that the OSD is all that can answer.
const configuration = `[global]
fsid = %[2]s
mon host = [v2:127.0.0.1:%[3]s]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
run dir = %[1]s
admin socket = %[1]s/$name.$pid.asok
log file = %[1]s/$name.log
keyring = %[1]s/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon allow pool delete = true
mon data avail crit = 1
mon data = %[1]s/mon
mon initial members = a
osd data = %[1]s/osd
osd objectstore = bluestore
bluestore block size = 4294967296
bluestore block create = true
osd memory target = 939524096
osd mon report interval = 1
mon tick interval = 1
`

// cluster is a Ceph cluster of this test binary.
type cluster struct {
	folder, conf string
	mon, osd     *exec.Cmd
}

// shared is the cluster of all tests.
var shared *cluster

func TestMain(m *testing.M) {
	os.Exit(func() int {
		began := time.Now()
		c, err := startCluster()
		if c != nil {
			defer c.stop()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "the cluster does not start:", err)
			return 1
		}
		fmt.Fprintf(os.Stderr, "the cluster is up after %v\n", time.Since(began).Round(time.Second))
		shared = c
		return m.Run()
	}())
}

// startCluster starts a cluster. The caller stops it even if that fails.
func startCluster() (*cluster, error) {
	folder, err := os.MkdirTemp("", "viablk-ceph-")
	if err != nil {
		return nil, err
	}
	c := &cluster{folder: folder, conf: filepath.Join(folder, "ceph.conf")}
	port, err := freePort()
	if err != nil {
		return c, err
	}
	for _, name := range []string{"mon", "osd"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			return c, err
		}
	}
	fsid := block.FormatUUID(block.NewUUID())
	if err := os.WriteFile(c.conf, fmt.Appendf(nil, configuration, folder, fsid, port), 0o600); err != nil {
		return c, err
	}
	keyring, monmap := filepath.Join(folder, "keyring"), filepath.Join(folder, "monmap")
	for _, args := range [][]string{
		{"ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *"},
		{"ceph-authtool", "--gen-key", keyring, "-n", "client.admin", "--cap", "mon", "allow *", "--cap", "osd", "allow *"},
		{"monmaptool", "--create", "--fsid", fsid, "--addv", "a", "[v2:127.0.0.1:" + port + "]", monmap},
		{"ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring},
	} {
		if _, err := c.try(args...); err != nil {
			return c, err
		}
	}
	if c.mon, err = c.daemon("ceph-mon", "-i", "a"); err != nil {
		return c, err
	}
	uuid := block.FormatUUID(block.NewUUID())
	for _, args := range [][]string{
		{"ceph", "osd", "new", uuid},
		{"ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", uuid},
	} {
		if _, err := c.try(args...); err != nil {
			return c, err
		}
	}
	if err := c.startOSD(); err != nil {
		return c, err
	}
	for _, args := range [][]string{
		{"ceph", "osd", "pool", "create", "rbd", "8", "8", "replicated"},
		{"ceph", "osd", "pool", "application", "enable", "rbd", "rbd"},
	} {
		if _, err := c.try(args...); err != nil {
			return c, err
		}
	}
	return c, nil
}

// freePort returns a TCP port of loopback that nothing listens at.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// try runs a command of Ceph and returns what it prints.
func (c *cluster) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "CEPH_CONF="+c.conf)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// run is try for a test, which fails with it.
func (c *cluster) run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.try(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// daemon starts a daemon, which ends with this process.
func (c *cluster) daemon(args ...string) (*exec.Cmd, error) {
	out, err := os.OpenFile(filepath.Join(c.folder, args[0]+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(args[0], append(args[1:], "-f", "-c", c.conf)...)
	cmd.Stdout, cmd.Stderr = out, out
	return cmd, testbed.StartCommand(cmd)
}

// startOSD starts the OSD and waits until it serves.
func (c *cluster) startOSD() (err error) {
	if c.osd, err = c.daemon("ceph-osd", "-i", "0"); err != nil {
		return err
	}
	for deadline := time.Now().Add(commandLimit); ; time.Sleep(200 * time.Millisecond) {
		out, err := c.try("ceph", "osd", "stat")
		if err == nil && strings.Contains(out, "1 up") && c.osdBooted() {
			return nil
		}
		if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("the OSD is not up: %s", out), err)
		}
	}
}

// osdBooted reports whether the process that runs now is up, not one before it.
func (c *cluster) osdBooted() bool {
	out, err := c.try("ceph", "daemon", filepath.Join(c.folder, fmt.Sprintf("osd.0.%d.asok", c.osd.Process.Pid)), "status")
	return err == nil && strings.Contains(out, `"state": "active"`)
}

// killOSD kills the OSD.
func (c *cluster) killOSD() error {
	if c.osd == nil {
		return nil
	}
	err := c.osd.Process.Kill()
	_ = c.osd.Wait() // it was killed
	c.osd = nil
	return err
}

// signalOSD stops the OSD, or lets it go on.
func (c *cluster) signalOSD(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := c.osd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stop ends the cluster.
func (c *cluster) stop() {
	_ = c.killOSD()
	if c.mon != nil {
		_ = c.mon.Process.Kill()
		_ = c.mon.Wait()
	}
	_ = os.RemoveAll(c.folder)
}

// images numbers the images of the tests.
var images atomic.Int64

// image makes an image and returns its name with its pool.
func (c *cluster) image(t testing.TB, size string, more ...string) string {
	t.Helper()
	name := fmt.Sprintf("rbd/image%d", images.Add(1))
	c.run(t, append([]string{"rbd", "create", name, "--size", size}, more...)...)
	return name
}

// spec returns the specification of a disk.
func (c *cluster) spec(image string, options ...string) string {
	return "rbd:" + image + "?" + strings.Join(append(options, "conf="+c.conf), "&")
}
