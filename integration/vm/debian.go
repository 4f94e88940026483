package vm

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Debian's packages that depend on a kernel's: on that of the release, 6.1, and
// on that of the next release, which it has too.
const (
	KernelOfRelease = "linux-image-amd64"
	KernelOfNext    = "linux-image-6.12-amd64"
)

// kernelVariable names the package of the kernel for machines whose
// configuration leaves it open.
const kernelVariable = "VIABLK_VM_KERNEL"

// debian are packages of the distribution, unpacked but not installed.
type debian struct {
	folders map[string]string // of each package by name
	kernel  string            // name of the kernel's package
}

// asked remembers what apt answered in this process: asking takes half of the
// time of a boot.
var asked = struct {
	sync.Mutex
	answers map[string]*debian
}{answers: make(map[string]*debian)}

// fetchPackages brings a kernel, packages, and those of the libraries they
// depend on into the cache. apt chooses the versions and checks what it
// downloads; it needs no right to install anything.
func fetchPackages(c cache, kernel string, names []string) (*debian, error) {
	asked.Lock()
	defer asked.Unlock()
	names = slices.Compact(slices.Sorted(slices.Values(append(names, kernel))))
	key := string(c) + "\n" + kernel + "\n" + strings.Join(names, "\n")
	if d, ok := asked.answers[key]; ok {
		return d, nil
	}
	out, err := run("", "apt-cache", append([]string{"depends", "--recurse", "--important"}, names...)...)
	if err != nil {
		return nil, err
	}
	graph := parseDepends(out)
	if len(graph[kernel]) == 0 || !isKernel(graph[kernel][0]) {
		return nil, fmt.Errorf("apt-cache: %s depends on no kernel:\n%s", kernel, out)
	}
	files, err := candidates(withLibraries(graph, names))
	if err != nil {
		return nil, err
	}
	err = c.fill(slices.Sorted(maps.Values(files)), func(missing []string, in string) error {
		return unpack(files, missing, in)
	})
	if err != nil {
		return nil, err
	}
	d := &debian{folders: make(map[string]string), kernel: graph[kernel][0]}
	for name, file := range files {
		d.folders[name] = c.folder(file)
	}
	asked.answers[key] = d
	return d, nil
}

// isKernel says whether a package is that of a kernel.
func isKernel(name string) bool { return strings.HasPrefix(name, "linux-image-") }

// withLibraries adds the packages of the kernel and of libraries that packages
// depend on, directly or not. The name of a package says that it is a
// library's, a rule of Debian's.
func withLibraries(graph map[string][]string, names []string) []string {
	seen := make(map[string]bool)
	var add func(name string)
	add = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, needed := range graph[name] {
			if strings.HasPrefix(needed, "lib") || needed == "zlib1g" || isKernel(needed) {
				add(needed)
			}
		}
	}
	for _, name := range names {
		add(name)
	}
	return slices.Sorted(maps.Keys(seen))
}

// parseDepends reads what apt-cache depends writes: the name of a package, and
// indented lines with the packages it depends on. Of alternatives the last is
// taken; what is in angle brackets is no package, and those that provide it are
// indented further.
func parseDepends(text []byte) map[string][]string {
	graph := make(map[string][]string)
	from := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		kind, name, found := strings.Cut(line, "Depends: ")
		switch {
		case line != "" && line[0] != ' ':
			from = line
			graph[from] = nil
		case found && !strings.Contains(kind, "|") && !strings.HasPrefix(name, "<"):
			graph[from] = append(graph[from], name)
		}
	}
	return graph
}

// candidates returns the file name, without its ending, of the version that apt
// would download of each package.
func candidates(names []string) (map[string]string, error) {
	out, err := run("", "apt-get", append([]string{"download", "--print-uris"}, names...)...)
	if err != nil {
		return nil, err
	}
	files := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line) // 'URI' file size hash
		if len(fields) < 2 || !strings.HasSuffix(fields[1], ".deb") {
			continue
		}
		file := strings.TrimSuffix(fields[1], ".deb")
		name, _, _ := strings.Cut(file, "_")
		files[name] = filepath.Base(file)
	}
	for _, name := range names {
		if files[name] == "" {
			return nil, fmt.Errorf("apt-get download: no file for package %s:\n%s", name, out)
		}
	}
	return files, nil
}

// unpack downloads packages and unpacks each into a folder of its file's name.
func unpack(files map[string]string, missing []string, in string) error {
	args := []string{"download", "-q", "-o", "APT::Sandbox::User=root"}
	for name, file := range files {
		if slices.Contains(missing, file) {
			args = append(args, name)
		}
	}
	if _, err := run(in, "apt-get", args...); err != nil {
		return err
	}
	for _, file := range missing {
		archive := filepath.Join(in, file+".deb")
		if _, err := run(in, "dpkg-deb", "-x", archive, filepath.Join(in, file)); err != nil {
			return err
		}
		if err := decompressModules(filepath.Join(in, file)); err != nil {
			return err
		}
		if err := os.Remove(archive); err != nil {
			return err
		}
	}
	return nil
}

// run runs a program in a folder and returns its output.
func run(folder, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Stderr = folder, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%w: make deps installs it", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w (apt-get update may help if a package is not found)\n%s", cmd, err, &stderr)
	}
	return out, nil
}
