package backend

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDiskIsLogged: the first write without room is one line with the
// backing file, and further ones soon after are none.
func TestFullDiskIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		errno error
		lines int
	}{"full": {unix.ENOSPC, 1}, "quota": {unix.EDQUOT, 1}, "other": {unix.EIO, 0}} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			k := &broken{onAllocate: func(mode uint32) (error, bool) { return c.errno, mode == unix.FALLOC_FL_KEEP_SIZE }}
			path := newFile(t, 1<<20)
			d, err := openFile(path, fileOptions{lock: true, log: slog.New(slog.NewTextHandler(&log, nil))}, k)
			if err != nil {
				t.Fatal(err)
			}
			disk := viewOf(t, d)
			for i := range 3 {
				_, err := disk.WriteAt(fill(512, 1), int64(i)*4096)
				if (err != nil) != (c.lines > 0) {
					t.Errorf("write: %v", err)
				}
			}
			if got := strings.Count(log.String(), "event=disk_full"); got != c.lines || c.lines > 0 && !strings.Contains(log.String(), "path="+path) {
				t.Errorf("%d lines: %s", got, log.String())
			}
		})
	}
}
