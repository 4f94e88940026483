package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// disk sets the exports to what a plugin behind filters serves.
func (c *command) disk(filters []string, plugin string, words []string) error {
	p := parameters{}
	for _, w := range words {
		key, value, found := strings.Cut(w, "=")
		if !found {
			key, value = "", w
		}
		p[key] = value
	}
	err := c.plugin(plugin, p)
	for _, f := range slices.Backward(filters) {
		if err == nil {
			err = c.filter(f, p)
		}
	}
	for key := range p {
		if err == nil {
			err = foreign("parameter %q of %s", key, plugin)
		}
	}
	return err
}

// parameters are those of a plugin and its filters; "" is the one without a
// name.
type parameters map[string]string

// remove removes a parameter, or the one without a name.
func (p parameters) remove(key string) string {
	value, found := p[key]
	if !found {
		key = ""
		value = p[key]
	}
	delete(p, key)
	return value
}

// plugin sets the exports to what a plugin serves.
func (c *command) plugin(name string, p parameters) error {
	e := &c.exports[0]
	switch name {
	case "memory", "null":
		size, err := parseSize(p.remove("size"))
		if err != nil {
			return err
		}
		if size == 0 && name == "null" {
			size = 512 // the smallest disk that there is
		}
		if size%512 != 0 {
			return foreign("a disk of %d bytes, which is no multiple of 512", size)
		}
		e.Backend = fmt.Sprintf("%s:%d", name, size)
		return nil
	case "pattern":
		size, err := parseSize(p.remove("size"))
		if err != nil {
			return err
		}
		path, err := makeFile("pattern", size, writePattern)
		e.Backend, e.ReadOnly = "file:"+path+"?readonly=1", true
		return err
	case "data":
		spots, ok := parseData(p["data"])
		if size, err := parseSize(p["size"]); ok && err == nil && size > 0 {
			clear(p)
			path, err := makeFile("data", size, func(f *os.File, _ int64) error { return writeData(f, spots) })
			e.Backend = "file:" + path
			return err
		}
		fallthrough
	case "sparse-random":
		path, err := copyPlugin(name, p)
		e.Backend = "file:" + path
		return err
	case "file":
		return c.files(p)
	}
	return foreign("plugin %s", name)
}

// files serves a file, or those in a folder.
func (c *command) files(p parameters) error {
	folder, found := p["dir"]
	if !found {
		path, err := filepath.Abs(p.remove("file"))
		if err != nil {
			return err
		}
		c.exports[0].Backend = "file:" + path
		return checkSize(path)
	}
	delete(p, "dir")
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	c.exports = nil
	for _, entry := range entries {
		st, err := entry.Info()
		switch {
		case err != nil:
			return err
		case !st.Mode().IsRegular():
			continue
		}
		if err := checkSize(filepath.Join(folder, entry.Name())); err != nil {
			return err
		}
		c.exports = append(c.exports, export{Name: entry.Name(), Backend: "file:" + filepath.Join(folder, entry.Name())})
	}
	return nil
}

// filter wraps the disk.
func (c *command) filter(name string, p parameters) error {
	e := &c.exports[0]
	switch name {
	case "cow": // the file is the shim's own
		e.Backend, e.ReadOnly = strings.TrimSuffix(e.Backend, "?readonly=1"), false
		return nil
	case "delay":
		for key, ours := range map[string]string{"delay-read": "read", "delay-write": "write", "delay-trim": "trim"} {
			if value, found := p[key]; found {
				if _, err := strconv.Atoi(value); err == nil {
					value += "s"
				}
				e.Backend = fmt.Sprintf("delay:%s=%s:%s", ours, value, e.Backend)
				delete(p, key)
			}
		}
		return nil
	case "blocksize-policy":
		for key, limit := range map[string]*int64{
			"blocksize-minimum": &e.MinimumBlock, "blocksize-preferred": &e.PreferredBlock, "blocksize-maximum": &e.MaximumPayload,
		} {
			if value, found := p[key]; found {
				n, err := parseSize(value)
				if err != nil {
					return err
				}
				*limit = n
				delete(p, key)
			}
		}
		if p["blocksize-error-policy"] == "error" { // what viablk always does
			delete(p, "blocksize-error-policy")
		}
		return nil
	}
	return foreign("filter %s", name)
}

// parseSize parses a size of nbdkit.
func parseSize(text string) (int64, error) {
	number := strings.TrimRight(text, "kKmMgGs")
	n, err := strconv.ParseInt(number, 10, 62)
	if err != nil && text != "" {
		return 0, foreign("size %q", text)
	}
	switch strings.ToLower(text[len(number):]) {
	case "":
		return n, nil
	case "s":
		return n << 9, nil
	case "k":
		return n << 10, nil
	case "m":
		return n << 20, nil
	case "g":
		return n << 30, nil
	}
	return 0, foreign("size %q", text)
}

// makeFile makes a file of the shims.
func makeFile(kind string, size int64, write func(f *os.File, size int64) error) (string, error) {
	if size < 512 || size%512 != 0 {
		return "", foreign("a disk of %d bytes, which is no multiple of 512", size)
	}
	f, err := os.CreateTemp(os.Getenv(folderVariable), kind+"-*")
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return "", err
	}
	return f.Name(), write(f, size)
}

// writePattern fills a file with what nbdkit's plugin of that name serves: the
// offset of every eighth byte, in network order.
func writePattern(f *os.File, size int64) error {
	content := make([]byte, (size+7)&^7)
	for at := 0; at < len(content); at += 8 {
		binary.BigEndian.PutUint64(content[at:], uint64(at))
	}
	_, err := f.WriteAt(content[:size], 0)
	return err
}

// copyPlugin has the real nbdkit serve a plugin, and copies what it serves to a
// file.
func copyPlugin(name string, p parameters) (string, error) {
	var words []string
	for key, value := range p {
		if key != "" {
			value = key + "=" + value
		}
		words = append(words, value)
		delete(p, key)
	}
	path, err := makeFile(name, 512, func(*os.File, int64) error { return nil })
	if err != nil {
		return "", err
	}
	nbdkit, err := other("nbdkit")
	if err != nil {
		return "", err
	}
	if err := os.Remove(path); err != nil {
		return "", err
	}
	args := append([]string{"-U", "-", name}, words...)
	copier := exec.Command(nbdkit, append(args, "--run", `exec nbdcopy --sparse=0 "$uri" `+quote(path))...)
	if out, err := copier.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", copier, err, out)
	}
	return path, checkSize(path)
}

// checkSize refuses files that are no disk of viablk's.
func checkSize(path string) error {
	st, err := os.Stat(path)
	if err == nil && (st.Size() == 0 || st.Size()%512 != 0) {
		return foreign("a disk of %d bytes, which is no multiple of 512", st.Size())
	}
	return err
}

// spot is a byte somewhere.
type spot struct {
	at    int64
	value byte
}

// parseData parses the simplest of what nbdkit's data plugin understands:
// bytes, and offsets to go to.
func parseData(text string) (spots []spot, ok bool) {
	at := int64(0)
	for word := range strings.FieldsSeq(text) {
		if to, isOffset := strings.CutPrefix(word, "@"); isOffset {
			n, err := strconv.ParseInt(to, 0, 62)
			if err != nil {
				return nil, false
			}
			at = n
			continue
		}
		n, err := strconv.ParseUint(word, 0, 8)
		if err != nil {
			return nil, false
		}
		spots = append(spots, spot{at, byte(n)})
		at++
	}
	return spots, true
}

// writeData writes bytes where they belong. nbdkit keeps its data in pages of
// 32 KiB, and tells a page with a byte in it as data: so does the file.
func writeData(f *os.File, spots []spot) error {
	const page = 32 << 10
	st, err := f.Stat()
	if err != nil {
		return err
	}
	pages := map[int64][]byte{}
	for _, s := range spots {
		start := s.at &^ (page - 1)
		if pages[start] == nil {
			pages[start] = make([]byte, min(page, st.Size()-start))
		}
		pages[start][s.at-start] = s.value
	}
	for at, content := range pages {
		if _, err := f.WriteAt(content, at); err != nil {
			return err
		}
	}
	return nil
}
