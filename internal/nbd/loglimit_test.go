package nbd

import (
	"strings"
	"sync"
	"testing"
)

// logText keeps a log.
type logText struct {
	mu sync.Mutex
	// +checklocks:mu
	text strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A client that ends its connections by errors does not fill the log.
func TestLinesThatClientsCause(t *testing.T) {
	var text logText
	f := serveLog(t, &text, TLS{}, Limits{}, disks()...)
	const rounds = 150
	for range rounds {
		p := f.connectExport("disk", simple)
		p.put(make([]byte, 28)) // no magic number
		p.wantEnd()
		p.Close()
	}
	f.stop()
	if lines := strings.Count(text.String(), "connection ended"); lines < 10 || lines > rounds/2 {
		t.Errorf("%d lines of %d connections", lines, rounds)
	}
}
