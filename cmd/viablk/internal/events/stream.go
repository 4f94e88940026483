package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Times of a stream.
const (
	stallTimeout = time.Minute      // for a reader to take what was written
	endTimeout   = time.Second      // the same once the ring has ended
	quietTime    = 15 * time.Second // between comments to a reader without events
)

// Lost is the event that tells a reader how many the ring had replaced before
// they were sent.
const Lost = "lost"

// Stream writes the events after the one with the ID last, and those that come
// if follow is set, as server-sent events. It returns nil when the reader has
// gone, the ring has ended or no event is left, and ErrReaders or ErrEnded
// before it has written anything.
func (r *Ring) Stream(w http.ResponseWriter, q *http.Request, last string, follow bool) error {
	if err := r.attach(); err != nil {
		return err
	}
	defer r.detach()
	s := &stream{ring: r, w: w, control: http.NewResponseController(w), next: r.after(last)}
	ended := make(chan struct{})
	stop := context.AfterFunc(r.ending, func() {
		_ = s.control.SetWriteDeadline(time.Now().Add(endTimeout))
		close(ended)
	})
	defer func() {
		if !stop() {
			<-ended
		}
	}()
	// The server reads meanwhile, to see that the client leaves. A writer without
	// deadlines is one of a test.
	_ = s.control.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	if q.Method != http.MethodHead {
		s.run(q.Context(), follow)
	}
	return nil
}

// stream is the events on their way to a reader.
type stream struct {
	ring    *Ring
	w       http.ResponseWriter
	control *http.ResponseController
	next    uint64 // event
	out     bytes.Buffer
}

// run sends events until there is no reason to.
func (s *stream) run(ctx context.Context, follow bool) {
	quiet := time.NewTicker(quietTime)
	defer quiet.Stop()
	for {
		b := s.ring.read(s.next)
		s.encode(&b)
		if s.flush() != nil {
			return // the reader has gone, or takes nothing
		}
		switch {
		case len(b.records) > 0:
			continue
		case b.ended || !follow:
			return
		}
		select {
		case <-b.changed:
		case <-quiet.C:
			s.out.WriteString(":\n\n")
		case <-ctx.Done():
			return
		}
	}
}

// encode appends events to what is to be written.
func (s *stream) encode(b *batch) {
	lost := b.lost
	for i, record := range b.records {
		if record == nil {
			lost++
			continue
		}
		s.tellLost(lost)
		lost = 0
		fmt.Fprintf(&s.out, "id: %s\n", s.ring.id(b.begin+uint64(i)))
		if name := nameOf(record); name != "" {
			fmt.Fprintf(&s.out, "event: %s\n", name)
		}
		fmt.Fprintf(&s.out, "data: %s\n\n", record)
	}
	s.tellLost(lost)
	s.next = b.begin + uint64(len(b.records))
}

func (s *stream) tellLost(n uint64) {
	if n > 0 {
		fmt.Fprintf(&s.out, "event: %s\ndata: {\"lost\":%d}\n\n", Lost, n)
	}
}

// nameOf returns the event of a record, empty if it has none.
func nameOf(record []byte) string {
	var v struct {
		Event string `json:"event"`
	}
	if json.Unmarshal(record, &v) != nil || strings.ContainsFunc(v.Event, func(c rune) bool { return c != '_' && (c < 'a' || c > 'z') }) {
		return ""
	}
	return v.Event
}

// flush writes. A reader that takes nothing has its time, which the end of the
// ring cuts short.
func (s *stream) flush() error {
	if s.ring.ending.Err() == nil {
		_ = s.control.SetWriteDeadline(time.Now().Add(stallTimeout))
		if s.ring.ending.Err() != nil { // it has set its deadline, or is about to
			_ = s.control.SetWriteDeadline(time.Now().Add(endTimeout))
		}
	}
	_, err := s.w.Write(s.out.Bytes())
	s.out.Reset()
	if err == nil {
		err = s.control.Flush()
	}
	return err
}
