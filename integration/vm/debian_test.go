package vm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// depends is what apt-cache depends --recurse --important wrote, shortened.
const depends = `linux-image-amd64
  Depends: linux-image-6.1.0-56-amd64
linux-image-6.1.0-56-amd64
  Depends: kmod
 |Depends: initramfs-tools
  Depends: <linux-initramfs-tool>
    dracut
iproute2
 |Depends: debconf
  Depends: <debconf-2.0>
    cdebconf
    debconf
  Depends: libbpf1
  PreDepends: libc6
libbpf1
  Depends: libc6
  Depends: zlib1g
libc6
  Depends: libgcc-s1
libgcc-s1
  Depends: libc6
zlib1g
  Depends: libc6
kmod
  Depends: libkmod2
libkmod2
`

func TestPackagesOfLibraries(t *testing.T) {
	graph := parseDepends([]byte(depends))
	for root, want := range map[string]string{
		"iproute2":          "iproute2 libbpf1 libc6 libgcc-s1 zlib1g",
		"linux-image-amd64": "linux-image-6.1.0-56-amd64 linux-image-amd64",
		"libkmod2":          "libkmod2",
	} {
		if got := withLibraries(graph, []string{root}); !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: got %v, want %s", root, got, want)
		}
	}
}

// pack makes the folder of a package with empty files and symbolic links.
func pack(t *testing.T, links map[string]string, files ...string) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range files {
		must(t, os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(folder, name), nil, 0o755))
	}
	for name, target := range links {
		must(t, os.MkdirAll(filepath.Join(folder, filepath.Dir(name)), 0o755))
		must(t, os.Symlink(target, filepath.Join(folder, name)))
	}
	return folder
}

// Links within a package lead to its files, absolute ones too, and none leads
// to the host.
func TestLibraryBehindLinks(t *testing.T) {
	folder := pack(t, map[string]string{
		"lib64/ld-linux.so.2":        "/lib/x/ld-linux.so.2",
		"usr/lib/x/liba.so.1":        "liba.so.1.2",
		"usr/lib/x/liba.so":          "liba.so.1",
		"usr/lib/x/libelsewhere.so":  "/etc/passwd",
		"usr/lib/x/libround.so":      "libround.so",
		"usr/share/doc/changelog.gz": "../liba",
	}, "lib/x/ld-linux.so.2", "usr/lib/x/liba.so.1.2")
	got, err := librariesOf(map[string]string{"a": folder})
	must(t, err)
	for name, want := range map[string]string{
		"ld-linux.so.2": "lib/x/ld-linux.so.2", "liba.so.1.2": "usr/lib/x/liba.so.1.2",
		"liba.so.1": "usr/lib/x/liba.so.1.2", "liba.so": "usr/lib/x/liba.so.1.2",
	} {
		if got[name] != filepath.Join(folder, want) {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d libraries, want 4: %v", len(got), got)
	}
}

// A program's libraries are found by what its file says.
func TestLibrariesOfProgram(t *testing.T) {
	got, err := readDynamic("/usr/bin/dpkg-deb")
	must(t, err)
	if !slices.Contains(got.libraries, "libc.so.6") || !strings.HasPrefix(filepath.Base(got.interpreter), "ld-linux") {
		t.Errorf("dpkg-deb asks for %+v", got)
	}
	for _, content := range []string{"", "#!", "#!/bin/sh\nexit 0\n"} {
		script := filepath.Join(t.TempDir(), "script")
		must(t, os.WriteFile(script, []byte(content), 0o755))
		if got, err = readDynamic(script); err != nil || len(got.libraries) > 0 || got.interpreter != "" {
			t.Errorf("%q asks for %+v, %v", content, got, err)
		}
	}
}

func TestToolsOfPackages(t *testing.T) {
	img, err := newImage(map[string]string{"a": pack(t, map[string]string{"usr/bin/link": "/bin/real"},
		"bin/real", "usr/sbin/daemon", "usr/lib/x/plug-1.so", "usr/lib/x/plug-2.so")})
	must(t, err)
	for tool, want := range map[string]string{
		"a/real": "usr/bin/real", "a/daemon": "usr/sbin/daemon", "a/link": "usr/bin/link",
		"a/usr/lib/x/plug-?.so": "usr/lib/x/plug-2.so",
	} {
		must(t, img.addTool(tool))
		if img.entries[want].file == "" {
			t.Errorf("%s brought no %s: %v", tool, want, img.entries)
		}
	}
	for tool, want := range map[string]string{
		"a/none": "the package has none of", "b/real": "there is no package b", "a/usr/lib/[": "syntax error",
	} {
		if err := img.addTool(tool); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", tool, err, want)
		}
	}
	if err := img.addFile("/bin/real", "/usr/bin/dpkg-deb"); err == nil || !strings.Contains(err.Error(), "another file at /usr/bin/real") {
		t.Errorf("two files at one place: %v", err)
	}
	if err := img.addFile("program", "/usr/bin/dpkg-deb"); err == nil || !strings.Contains(err.Error(), "which is in none of the packages") {
		t.Errorf("a program without its libraries: %v", err)
	}
}
