package vm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/viablk/viablk/integration/vm/agent"
)

// image is the file tree with which a guest boots: entries by their paths in
// the guest, without leading slash.
type image struct {
	entries   map[string]entry
	packages  map[string]string // folder of each by name
	libraries libraries
}

// entry is a file of the tree; the first field that is set says what it is.
type entry struct {
	link    string // symbolic link to this
	file    string // copy of this file of the host
	content []byte
	mode    uint32 // permissions
}

// libraryFolder is where the guest's dynamic linker looks for libraries.
const libraryFolder = "usr/lib/x86_64-linux-gnu/"

// newImage begins a tree with the files of packages at hand.
func newImage(packages map[string]string) (*image, error) {
	found, err := librariesOf(packages)
	if err != nil {
		return nil, err
	}
	img := &image{entries: make(map[string]entry), packages: packages, libraries: found}
	for _, merged := range []string{"bin", "sbin", "lib", "lib64"} {
		img.entries[merged] = entry{link: "usr/" + merged}
	}
	img.entries["usr/sbin/modprobe"] = entry{link: "/init"}
	img.entries["usr/bin/sh"] = entry{link: "dash"}
	img.entries["etc/passwd"] = entry{content: []byte("root:x:0:0:root:/root:/bin/sh\n"), mode: 0o644}
	return img, nil
}

// addTool adds a program or a file of a package, see Config.Tools.
func (img *image) addTool(tool string) error {
	name, rest, _ := strings.Cut(tool, "/")
	folder, ok := img.packages[name]
	if !ok {
		return fmt.Errorf("tool %s: there is no package %s", tool, name)
	}
	places := []string{rest}
	if !strings.Contains(rest, "/") {
		places = []string{"usr/bin/" + rest, "usr/sbin/" + rest, "bin/" + rest, "sbin/" + rest}
	}
	for _, place := range places {
		found, err := filepath.Glob(filepath.Join(folder, place))
		if err != nil {
			return fmt.Errorf("tool %s: %w", tool, err)
		}
		for _, path := range found {
			file, err := resolveIn(folder, path)
			if err == nil {
				err = img.addFile(strings.TrimPrefix(path, folder), file)
			}
			if err != nil {
				return fmt.Errorf("tool %s: %w", tool, err)
			}
		}
		if len(found) > 0 {
			return nil
		}
	}
	return fmt.Errorf("tool %s: the package has none of %v", tool, places)
}

// addFile adds a file of the host and the libraries that it needs.
func (img *image) addFile(name, file string) error {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	for _, merged := range []string{"bin/", "sbin/", "lib/", "lib64/"} {
		if strings.HasPrefix(name, merged) {
			name = "usr/" + name
		}
	}
	if there, ok := img.entries[name]; ok && there.file == file {
		return nil
	} else if ok {
		return fmt.Errorf("there is another file at /%s already", name)
	}
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", file)
	}
	img.entries[name] = entry{file: file, mode: uint32(st.Mode().Perm())}
	needed, err := readDynamic(file)
	if err != nil {
		return err
	}
	if needed.interpreter != "" {
		if err := img.addLibrary(needed.interpreter, path.Base(needed.interpreter), file); err != nil {
			return err
		}
	}
	for _, library := range needed.libraries {
		if err := img.addLibrary(libraryFolder+library, library, file); err != nil {
			return err
		}
	}
	return nil
}

// addLibrary adds a library, at a place in the guest.
func (img *image) addLibrary(place, library, neededBy string) error {
	file, ok := img.libraries[library]
	if !ok {
		return fmt.Errorf("%s needs the library %s, which is in none of the packages: name a tool of its package", neededBy, library)
	}
	return img.addFile(place, file)
}

// addModules adds modules and the manifest.
func (img *image) addModules(k *kernel, load []string, init string) error {
	var names []string
	for _, line := range load {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	closed, err := k.modules.closure(names)
	if err != nil {
		return err
	}
	for _, m := range closed {
		if m.File == "" {
			continue
		}
		if err := img.addFile(m.File, k.modules[m.Name].Path); err != nil {
			return err
		}
	}
	text, err := json.Marshal(agent.Manifest{Load: load, Modules: closed, Init: init})
	if err != nil {
		return err
	}
	img.entries[strings.TrimPrefix(agent.ManifestPath, "/")] = entry{content: text, mode: 0o644}
	return nil
}

// write writes the tree as an archive that the kernel unpacks.
func (img *image) write(to string) error {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	buffered := bufio.NewWriterSize(f, 1<<20)
	w := &cpioWriter{to: buffered}
	for _, folder := range img.folders() {
		w.write(folder, cpioFolder|0o755, 0, nil)
	}
	w.writeDevice("dev/console", cpioDevice|0o600, 0, nil, 5, 1)
	for _, name := range slices.Sorted(maps.Keys(img.entries)) {
		if err := img.entries[name].write(w, name); err != nil {
			return err
		}
	}
	if err := w.close(); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	if err := buffered.Flush(); err != nil {
		return err
	}
	return f.Close()
}

// folders returns the folders of all entries, each behind the one it is in.
func (img *image) folders() []string {
	found := map[string]bool{"dev": true, "proc": true, "sys": true, "run": true, "tmp": true, "root": true, "mnt": true}
	for name := range img.entries {
		for folder := path.Dir(name); folder != "."; folder = path.Dir(folder) {
			found[folder] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// write writes an entry into an archive.
func (e entry) write(w *cpioWriter, name string) error {
	switch {
	case e.link != "":
		w.write(name, cpioSymlink|0o777, int64(len(e.link)), strings.NewReader(e.link))
	case e.file != "":
		f, err := os.Open(e.file)
		if err != nil {
			return err
		}
		defer f.Close()
		var st fs.FileInfo
		if st, err = f.Stat(); err != nil {
			return err
		}
		w.write(name, cpioFile|e.mode, st.Size(), f)
	default:
		w.write(name, cpioFile|e.mode, int64(len(e.content)), bytes.NewReader(e.content))
	}
	return w.err
}
