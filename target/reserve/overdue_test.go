package reserve

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestOverdue: the oldest request of any client makes a disk overdue, which the
// log says once, and new clients are refused until it is answered.
func TestOverdue(t *testing.T) {
	var log bytes.Buffer
	d, now := newDisk(), time.Duration(1)
	d.Limit("disk", 10*time.Second, slog.New(slog.NewTextHandler(&log, nil)))
	clock := func() time.Duration { return now }
	a, b := d.AddAge(clock), d.AddAge(clock)
	a.Set(now)
	now += 8 * time.Second
	b.Set(now)
	if got := d.Oldest(); got != 8*time.Second || d.Overdue() != 0 || d.Admit() != nil {
		t.Errorf("a request has been in the disk for %v; overdue %v", got, d.Overdue())
	}
	now += 3 * time.Second
	for range 2 {
		if got := d.Overdue(); got != 11*time.Second {
			t.Errorf("overdue for %v", got)
		}
	}
	if _, err := d.NBD("c", false, nil); err == nil || err.Error() != "the disk has not answered a request for 11s: try again" {
		t.Errorf("a new client: %v", err)
	}
	if len(d.Clients()) != 0 {
		t.Errorf("a refused client is there: %v", d.Clients())
	}
	a.Set(0)
	if got := d.Oldest(); got != 3*time.Second || d.Overdue() != 0 {
		t.Errorf("the oldest of the others has been there for %v; overdue %v", got, d.Overdue())
	}
	now += 30 * time.Second
	d.Overdue()
	d.RemoveAge(b) // its connection ended
	if text := log.String(); strings.Count(text, "event=disk_overdue") != 2 || strings.Count(text, "event=disk_answered") != 2 || d.Oldest() != 0 {
		t.Errorf("oldest %v; the log has %s", d.Oldest(), text)
	}
}

// TestOverdueOfNBD: what an NBD connection tells counts, and ends with it.
func TestOverdueOfNBD(t *testing.T) {
	var log bytes.Buffer
	d := newDisk()
	d.Limit("disk", time.Nanosecond, slog.New(slog.NewTextHandler(&log, nil)))
	var clients []*NBD
	for range 2 {
		n, err := d.NBD("c", false, nil)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, n)
	}
	n := clients[0]
	n.InDisk(time.Now())
	if d.Oldest() == 0 || log.Len() != 0 {
		t.Errorf("the oldest request has %v; the log %s", d.Oldest(), log.String())
	}
	n.InDisk(time.Now()) // it stays there
	if !strings.Contains(log.String(), "event=disk_overdue") {
		t.Errorf("log: %s", log.String())
	}
	n.InDisk(time.Time{})
	if !strings.Contains(log.String(), "event=disk_answered") || d.Oldest() != 0 {
		t.Errorf("oldest %v; log: %s", d.Oldest(), log.String())
	}
	clients[1].InDisk(time.Now())
	clients[1].Release()
	n.Release()
	if d.Oldest() != 0 {
		t.Errorf("a request of a connection that has ended has %v", d.Oldest())
	}
}
