package backend

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/viablk/viablk/internal/block"
)

func TestSpecifications(t *testing.T) {
	path := newFile(t, 1<<20)
	odd := filepath.Join(t.TempDir(), "100%?.img")
	if err := os.WriteFile(odd, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	escaped := strings.NewReplacer("%", "%25", "?", "%3F").Replace(odd)
	for spec, want := range map[string]struct {
		size     int64
		readOnly bool
	}{
		"memory:1MiB":                            {1 << 20, false},
		"memory:512?readonly=1":                  {512, true},
		"memory:512?readonly=no":                 {512, false},
		"null:1P":                                {1 << 50, false},
		"file:" + path:                           {1 << 20, false},
		"file:" + path + "?readonly":             {1 << 20, true},
		"file:" + path + "?direct=1":             {1 << 20, false},
		"file:" + path + "?create=5G":            {1 << 20, false},
		path + "?lock=0&readonly=true":           {1 << 20, true},
		"file:" + escaped:                        {4096, false},
		"delay:read=5ms,write=10ms:memory:1GiB":  {1 << 30, false},
		"fault:write=EIO@3:" + path:              {1 << 20, false},
		"volatile:fault:flush=ignore:memory:1K":  {1024, false},
		"delay:any=1ms:fault:any=hang:null:1GiB": {1 << 30, false},
	} {
		t.Run(spec, func(t *testing.T) {
			d := mustOpen(t, spec, Options{})
			info := d.Info()
			if info.Size != want.size || info.Features&block.ReadOnly != 0 != want.readOnly {
				t.Errorf("Open gives %+v", info)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCreatedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new")
	d := mustOpen(t, "file:"+path+"?create=1GiB", Options{})
	defer d.Close()
	st, err := os.Stat(path)
	if err != nil || st.Size() != 1<<30 || st.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", st, err)
	}
}

// refusal is what Open says about a bad specification.
type refusal struct {
	is   error
	says string
}

func TestRefusedWrappers(t *testing.T) {
	for spec, want := range map[string]refusal{
		"delay:read=5ms":                 {ErrUsage, "wraps no disk"},
		"delay:read=5:memory:1M":         {ErrUsage, "such as 5ms"},
		"delay:seek=5ms:memory:1M":       {ErrUsage, "OP is"},
		"fault:write=EFUN:memory:1M":     {ErrUsage, "errno such as EIO"},
		"fault:write=EIO@0:memory:1M":    {ErrUsage, "WHEN is"},
		"fault:write=EIO@5-4:memory:1M":  {ErrUsage, "not less than"},
		"fault:write=EIO@101%:memory:1M": {ErrUsage, "0% to 100%"},
		"fault:write=EIO@NaN%:memory:1M": {ErrUsage, "0% to 100%"},
		"fault:write=EIO@1%x:memory:1M":  {ErrUsage, "not a number"},
		"fault:sync=EIO:memory:1M":       {ErrUsage, "OP is"},
		"volatile:nothing":               {ErrUsage, "no kind of disk"},
	} {
		t.Run(spec, func(t *testing.T) { wantRefusal(t, spec, want) })
	}
}

func wantRefusal(t *testing.T, spec string, want refusal) {
	t.Helper()
	d, err := Open(spec, Options{})
	if err == nil {
		d.Close()
		t.Fatal("Open succeeds")
	}
	if want.is != nil && !errors.Is(err, want.is) || !strings.Contains(err.Error(), want.says) {
		t.Errorf("Open: %v; want %v that says %q", err, want.is, want.says)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than one line", err)
	}
}

func TestRefusedSpecifications(t *testing.T) {
	dir := t.TempDir()
	path, odd, empty := newFile(t, 1<<20), newFile(t, 1000), newFile(t, 0)
	socket := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for spec, want := range map[string]refusal{
		"":                              {ErrUsage, "no kind of disk"},
		"disk.img":                      {ErrUsage, "no kind of disk"},
		"sheepdog:pool/image":           {ErrUsage, "unknown kind of disk"},
		"memory:":                       {ErrUsage, "not a number"},
		"memory:1KB":                    {ErrUsage, "write K or KiB"},
		"memory:0":                      {ErrUsage, "empty"},
		"memory:513":                    {ErrUsage, "make it 1024"},
		"memory:1M?direct=1":            {ErrUsage, `no option "direct"`},
		"null:1M?readonly=perhaps":      {ErrUsage, "not 0 or 1"},
		"null:1M?readonly=1&readonly=0": {ErrUsage, "given twice"},
		"file:":                         {ErrUsage, "needs a path"},
		"file:" + dir:                   {ErrUsage, "is a directory"},
		"file:" + socket:                {ErrUsage, "neither a regular file nor"},
		"file:/dev/null":                {ErrUsage, "neither a regular file nor"},
		"file:" + dir + "/missing":      {fs.ErrNotExist, "create it"},
		"file:" + path + "/below":       {nil, "not a directory"},
		"file:" + odd:                   {ErrUsage, "make it 1024"},
		"file:" + empty:                 {ErrUsage, "is empty"},
		"file:" + path + "?create=17":   {ErrUsage, "make it 512"},
		"file:" + path + "?size=1G":     {ErrUsage, `no option "size"`},
		"file:/100%.img":                {ErrUsage, "%25"},
		strings.Repeat("volatile:", 40) + "memory:1M": {ErrUsage, "nested"},
	} {
		t.Run(spec, func(t *testing.T) { wantRefusal(t, spec, want) })
	}
}

func TestLocks(t *testing.T) {
	path := newFile(t, 1<<20)
	writer := mustOpen(t, "file:"+path, Options{})
	for _, options := range []string{"", "?readonly=1"} {
		if d, err := Open("file:"+path+options, Options{}); !errors.Is(err, ErrLocked) {
			t.Errorf("second open with %q: %v, %v; want ErrLocked", options, d, err)
		}
	}
	mustOpen(t, "file:"+path+"?lock=0", Options{}).Close()

	// One that waits gets it when the first is closed.
	opened := make(chan error)
	go func() {
		d, err := Open("file:"+path, Options{LockWait: time.Minute})
		if err == nil {
			err = d.Close()
		}
		opened <- err
	}()
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	if err := <-opened; err != nil {
		t.Errorf("open that waits for the lock: %v", err)
	}

	readers := []block.Device{mustOpen(t, path+"?readonly=1", Options{}), mustOpen(t, path, Options{ReadOnly: true})}
	if _, err := Open("file:"+path, Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("a writer beside readers: %v; want ErrLocked", err)
	}
	for _, d := range readers {
		d.Close()
	}
}

func FuzzRules(f *testing.F) {
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := parseDelays(text); err != nil && !errors.Is(err, ErrUsage) {
			t.Errorf("delay:%s: %v is not ErrUsage", text, err)
		}
		faults, err := parseFaults(text)
		if err != nil {
			if !errors.Is(err, ErrUsage) {
				t.Errorf("fault:%s: %v is not ErrUsage", text, err)
			}
			return
		}
		for _, rule := range faults {
			if rule.action == pass || rule.first == 0 || rule.last < rule.first || !(rule.rate >= 0 && rule.rate <= 1) {
				t.Errorf("fault:%s: parsed as %+v", text, rule.action)
			}
		}
	})
}

func TestErrorMessagesOfErrnos(t *testing.T) {
	for _, c := range []struct {
		errno   syscall.Errno
		options fileOptions
		is      error
		says    string
	}{
		{syscall.EBUSY, fileOptions{}, ErrLocked, "readonly=1"},
		{syscall.EINVAL, fileOptions{direct: true}, ErrUsage, "direct=1 out"},
		{syscall.EROFS, fileOptions{}, fs.ErrPermission, "readonly=1"},
		{syscall.EACCES, fileOptions{}, fs.ErrPermission, "readonly=1"},
		{syscall.EACCES, fileOptions{readOnly: true}, fs.ErrPermission, "permission denied"},
		{syscall.EIO, fileOptions{}, syscall.EIO, "open backing file"},
	} {
		err := explainOpen("/disk", c.options, c.errno)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), `"/disk"`) {
			t.Errorf("%v: %v; want %v that says %q", c.errno, err, c.is, c.says)
		}
	}
}

// Parse refuses what is wrong with the text, and opens, makes and starts
// nothing.
func TestParseOpensNothing(t *testing.T) {
	dir := t.TempDir()
	started := false
	nbd := func(string) (Opener, error) {
		return func(Options) (block.Device, error) { started = true; return nil, errors.ErrUnsupported }, nil
	}
	for spec, says := range map[string]string{
		"file:" + dir + "/new?create=1M":                  "",
		"mmap:" + dir + "/new?create=1M":                  "",
		"cow:" + dir + "/base," + dir + "/over?create=1":  "",
		"delay:read=1ms:file:" + dir + "/new?create=1M":   "",
		"volatile:run:[touch " + dir + "/new]":            "",
		"memory:8E?readonly=1":                            "size",
		"cow:" + dir + "/base":                            "write cow:BASE,OVERLAY",
		"file:" + dir + "/new?create=1MB":                 "write M or MiB",
		"mmap:" + dir + "/new?direct=1":                   `no option "direct"`,
		"cow:" + dir + "/base," + dir + "/over?create=1G": "not 0 or 1",
		"volatile:file:" + dir + "/new?io=fast":           "option io of file: is",
		"fault:write=EIO:rbd:pool":                        "names no image",
	} {
		_, err := Parse(spec, nbd)
		if says == "" && err != nil || says != "" && (!errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), says)) {
			t.Errorf("Parse(%q): %v; want %q", spec, err, says)
		}
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) > 0 || started {
		t.Errorf("Parse made %v, %v, started %v", made, err, started)
	}
}
