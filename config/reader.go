package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/viper"
)

// Limits of a configuration file with its fragments.
const (
	maximumFragments = 1000
	maximumText      = 8 * MiB // of all together
)

// fragmentFolder is beside a configuration file and has its fragments: files
// that add to it, in the order of their names.
const fragmentFolder = "conf.d"

// fragmentExtension ends the name of a fragment. Files with other names are
// none, such as what an editor or a package manager leaves behind.
const fragmentExtension = ".yaml"

// extensions end the name of a configuration file.
var extensions = []string{".yaml", ".yml", ".toml", ".json"}

// file is what one configuration file has.
type file struct {
	path   string
	values *viper.Viper
}

// readFiles reads the file at path and its fragments. An empty path is no file.
func readFiles(path string) (files, error) {
	if path == "" {
		return nil, nil
	}
	if !slices.Contains(extensions, strings.ToLower(filepath.Ext(path))) {
		return nil, fileError(path, "the name of a configuration file ends in .yaml, .yml, .toml or .json")
	}
	r := reader{left: int64(maximumText)}
	main, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer main.Close()
	if err := r.read(main); err != nil {
		return nil, err
	}
	fragments, err := r.fragments(filepath.Join(filepath.Dir(path), fragmentFolder))
	if err != nil {
		return nil, err
	}
	for _, path := range fragments {
		if err := r.readFragment(path); err != nil {
			return nil, err
		}
	}
	return r.files, r.bad.err()
}

// reader reads configuration files.
type reader struct {
	files files
	left  int64      // bytes that may be read
	owner uint32     // of the first file
	bad   complaints // about files that could be opened
}

// complain adds a complaint about a file as a whole.
func (r *reader) complain(path, format string, arguments ...any) {
	r.bad = append(r.bad, Problem{Origin: FromFile, Source: path, Message: fmt.Sprintf(format, arguments...)})
}

// fragments returns the paths of the fragments in a folder, which may be
// missing.
func (r *reader) fragments(folder string) (paths []string, err error) {
	f, err := os.Open(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read configuration: %w", err)
	case !info.IsDir():
		r.complain(folder, "is not a folder")
		return nil, nil
	case !r.trusts(folder, info):
		return nil, nil
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		extension := filepath.Ext(e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case extension == fragmentExtension:
			paths = append(paths, path)
		case slices.Contains(extensions, extension):
			r.complain(path, "the name of a file in %s ends in %s", fragmentFolder, fragmentExtension)
		}
	}
	if len(paths) > maximumFragments {
		r.complain(folder, "has %d files, at most %d are allowed", len(paths), maximumFragments)
		return nil, nil
	}
	slices.Sort(paths)
	return paths, nil
}

// readFragment reads the fragment at path.
func (r *reader) readFragment(path string) error {
	// To open a FIFO would wait for its writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if !info.Mode().IsRegular() {
		r.complain(path, "is not a regular file")
		return nil
	}
	return r.read(f)
}

// trusts reports whether a file or folder is of root, of the user of the
// process or of the owner of the first file, and others cannot write to it: it
// names disks, and commands that the process runs. Otherwise it complains.
func (r *reader) trusts(path string, info fs.FileInfo) bool {
	st := info.Sys().(*syscall.Stat_t)
	if len(r.files) == 0 {
		r.owner = st.Uid
	}
	switch {
	case info.Mode().Perm()&0o002 != 0:
		r.complain(path, "every user may write to it: chmod o-w")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() && st.Uid != r.owner:
		r.complain(path, "belongs to uid %d, who is neither root nor the user of the process, nor has %s", st.Uid, r.files[0].path)
	default:
		return true
	}
	return false
}

// read reads an open file, and complains about its content.
func (r *reader) read(f *os.File) error {
	path := f.Name()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if !r.trusts(path, info) {
		if len(r.files) == 0 {
			return r.bad.err()
		}
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, r.left+1))
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	if r.left -= int64(len(text)); r.left < 0 {
		return fileError(path, fmt.Sprintf("configuration files have at most %v, all together", maximumText))
	}
	v := viper.New()
	v.SetConfigType(strings.ToLower(strings.TrimPrefix(filepath.Ext(path), ".")))
	if err := v.ReadConfig(strings.NewReader(string(text))); err != nil {
		r.complain(path, "%s", oneLine(err.Error()))
	} else {
		r.checkSections(v, path)
	}
	r.files = append(r.files, file{path, v})
	return nil
}

// checkSections complains about sections that are not mappings: such a value
// would hide the defaults of everything below it.
func (r *reader) checkSections(v *viper.Viper, path string) {
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("mapstructure")
		if t.Field(i).Type.Kind() != reflect.Struct || !v.InConfig(name) {
			continue
		}
		if _, ok := v.Get(name).(map[string]any); !ok {
			r.bad = append(r.bad, Problem{
				Key: name, Origin: FromFile, Source: path,
				Message: "is a section: write its keys below it",
			})
		}
	}
}

// fileError is a complaint about a file as a whole.
func fileError(path, message string) error {
	return &Error{Problems: []Problem{{Origin: FromFile, Source: path, Message: message}}}
}

// oneLine joins the lines of a message of a parser.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
