//go:build packages

package packages

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// imageUser is who the image runs as, the user of no host.
const imageUser = 65532

// image is the image of a container in a store of its own.
type image struct {
	*testing.T
	folder string
	config struct {
		User            string
		Entrypoint, Cmd []string
		Labels          map[string]string
		StopSignal      string
	}
}

// newImage loads the image that was built.
func newImage(t *testing.T) *image {
	t.Helper()
	m := &image{T: t, folder: t.TempDir()}
	m.run("pull", "--quiet", "oci-archive:"+packageFile(t, "viablk.oci"))
	var found struct {
		OCIv1 struct{ Config json.RawMessage }
	}
	must(t, json.Unmarshal([]byte(m.run("inspect", "--type", "image", m.name())), &found))
	must(t, json.Unmarshal(found.OCIv1.Config, &m.config))
	return m
}

// command is one of buildah, which needs no daemon.
func (m *image) command(args ...string) []string {
	return append([]string{
		"--root", filepath.Join(m.folder, "store"), "--runroot", filepath.Join(m.folder, "run"),
		"--storage-driver", "vfs",
	}, args...)
}

// run runs a command of buildah and returns what it wrote.
func (m *image) run(args ...string) string {
	m.Helper()
	return strings.TrimSpace(run(m.T, "buildah", m.command(args...)...))
}

// name returns the identity of the image, the only one of the store.
func (m *image) name() string { return m.run("images", "--quiet", "--no-trunc") }

// The image serves with what it has: as its user, who is not root, with its
// command, its configuration and a socket in a folder of the host.
func TestImageServes(t *testing.T) {
	t.Parallel()
	m := newImage(t)
	if want := fmt.Sprintf("%d:%[1]d", imageUser); m.config.User != want {
		t.Fatalf("the image runs as %q, want %s", m.config.User, want)
	}
	if len(m.config.Entrypoint) != 1 || m.config.Entrypoint[0] != "/usr/bin/viablk" {
		t.Fatalf("the image runs %v", m.config.Entrypoint)
	}
	if v := m.config.Labels["org.opencontainers.image.version"]; v == "" || !strings.Contains(packageFile(t, "viablk.oci"), v) {
		t.Errorf("the image is of version %q", v)
	}
	container := m.run("from", "--pull-never", m.name())
	sockets := t.TempDir()
	must(t, os.Chown(sockets, imageUser, imageUser)) // initiators believe the owner of the folder
	must(t, os.Chmod(sockets, 0o755))
	inside := func(args ...string) []string {
		return m.command(append([]string{
			"run", "--isolation", "chroot", "--volume", sockets + ":/run/viablk-target", container, "--",
		}, args...)...)
	}
	serves := exec.CommandContext(t.Context(), "buildah", inside(slices.Concat(m.config.Entrypoint, m.config.Cmd)...)...)
	var output bytes.Buffer
	serves.Stdout, serves.Stderr = &output, &output
	serves.WaitDelay = time.Second
	must(t, serves.Start())
	ended := make(chan error, 1)
	go func() { ended <- serves.Wait() }()

	// An initiator of the host reads and writes the disk.
	folder := t.TempDir()
	run(t, "dpkg-deb", "--extract", packageFile(t, "viablk.deb"), folder)
	program := filepath.Join(folder, "usr/bin/viablk")
	uri := "via+shm:///scratch?socket=" + filepath.Join(sockets, "target.sock")
	source := filepath.Join(folder, "source")
	must(t, os.WriteFile(source, []byte("written by the host"), 0o600))
	must(t, os.Truncate(source, 64<<20))
	for deadline := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		out, code := attempt(t, program, "list", strings.Replace(uri, "scratch", "", 1))
		if code == 0 && strings.Contains(out, "scratch") {
			break
		}
		if len(ended) > 0 || time.Now().After(deadline) {
			t.Fatalf("the container does not serve: %s\n%s", out, &output)
		}
	}
	run(t, program, "copy", source, uri)
	run(t, program, "verify", source, uri)

	// Its status socket is inside, and shows the process.
	var status struct {
		Processes []struct {
			PID     int    `json:"pid"`
			Command string `json:"command"`
		} `json:"processes"`
	}
	text := run(t, "buildah", inside("/usr/bin/viablk", "status", "-o", "json")...)
	must(t, json.Unmarshal([]byte(text), &status))
	if len(status.Processes) != 1 || status.Processes[0].Command != "target" {
		t.Fatalf("status: %s", text)
	}

	// The signal of the image ends it.
	if m.config.StopSignal != "SIGTERM" {
		t.Errorf("%q ends the image", m.config.StopSignal)
	}
	must(t, syscall.Kill(status.Processes[0].PID, syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the container ended: %v\n%s", err, &output)
		}
	case <-ctx.Done():
		t.Fatalf("the container goes on\n%s", &output)
	}
}
