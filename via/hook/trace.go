package hook

import (
	"io"
	"strconv"
	"sync"

	"github.com/viablk/viablk/via"
)

// Trace returns a provider that writes a line to w per post, doorbell and
// completion of p, and per registration and link; the package comment is the
// legend. Each line is one Write. Errors of w are ignored.
func Trace(p via.Provider, w io.Writer) via.Provider {
	return &layer{Provider: p, tap: &tracer{w: w, name: p.Name()}}
}

// tracer formats lines into a buffer of its own: tracing does not allocate.
type tracer struct {
	passive
	name string

	mu  sync.Mutex
	w   io.Writer
	buf []byte
}

// begin starts a line. The caller ends it.
//
// A line is begun and ended under one lock.
// +checklocksignore
func (t *tracer) begin() *tracer {
	t.mu.Lock()
	t.buf = t.buf[:0]
	return t
}

// A line is begun and ended under one lock.
// +checklocksignore
func (t *tracer) end() {
	t.buf = append(t.buf, '\n')
	_, _ = t.w.Write(t.buf)
	t.mu.Unlock()
}

func (t *tracer) text(s string) *tracer { t.buf = append(t.buf, s...); return t }
func (t *tracer) num(v uint64) *tracer  { t.buf = strconv.AppendUint(t.buf, v, 10); return t }
func (t *tracer) hex(v uint64) *tracer  { t.buf = strconv.AppendUint(t.buf, v, 16); return t }

func (t *tracer) device(a *adapter, what string) *tracer {
	return t.begin().text("dev ").num(a.id).text(what)
}

func (t *tracer) opened(a *adapter) error {
	t.device(a, " open ").text(t.name).end()
	return nil
}

func (t *tracer) rights(m *via.Memory) *tracer {
	t.text(" tag ").num(uint64(m.Tag())).text(" ")
	switch {
	case m.RemoteRead() && m.RemoteWrite():
		return t.text("rw")
	case m.RemoteRead():
		return t.text("r")
	case m.RemoteWrite():
		return t.text("w")
	default:
		return t.text("-")
	}
}

func (t *tracer) registered(a *adapter, m *via.Memory) {
	t.device(a, " reg ").hex(uint64(m.Handle())).text(" +").num(uint64(len(m.Bytes()))).rights(m).end()
}

func (t *tracer) updated(a *adapter, m *via.Memory) {
	t.device(a, " upd ").hex(uint64(m.Handle())).rights(m).end()
}

func (t *tracer) deregistered(a *adapter, m *via.Memory) {
	t.device(a, " dereg ").hex(uint64(m.Handle())).end()
}

func (t *tracer) queued(a *adapter, q *queue) error {
	t.device(a, " cq ").num(q.id).end()
	return nil
}

func (t *tracer) linked(l *link) {
	t.device(l.adapter, " link ").num(l.id).text(" depth ").num(uint64(l.cfg.SendDepth)).text("/").
		num(uint64(l.cfg.RecvDepth)).text(" cq ").num(l.send.id).text("/").num(l.recv.id).end()
}

var opNames = [...]string{via.OpSend: "send", via.OpRdmaWrite: "write", via.OpRdmaRead: "read", via.OpRecv: "recv"}

func (t *tracer) posted(l *link, k *ticket, w *via.Work) {
	t.begin().num(l.id).text(" > ").text(opNames[w.Op]).text(" #").num(k.seq).text(" ").
		num(uint64(w.Length)).text("/").num(uint64(len(w.Segments)))
	if w.HasImmediate {
		t.text(" imm ").hex(uint64(w.Immediate))
	}
	if w.Op == via.OpRdmaWrite || w.Op == via.OpRdmaRead {
		t.text(" @").hex(w.RemoteAddr).text(" ").hex(uint64(w.RemoteHandle))
	}
	t.end()
}

func (t *tracer) refused(l *link, w *via.Work) {
	t.begin().num(l.id).text(" x ").text(opNames[w.Op]).text(" #").num(l.sends + 1).end()
}

func (t *tracer) rung(l *link) { t.begin().num(l.id).text(" bell").end() }

func (t *tracer) closed(l *link) { t.begin().num(l.id).text(" close").end() }

func (t *tracer) poll(q *queue, dst []via.Done) int {
	n := q.AdapterCQ.Poll(dst)
	for i := range dst[:n] {
		d := &dst[i]
		l, k := q.of(d)
		if l == nil {
			continue // of a link that is closed
		}
		t.begin().num(l.id)
		if k == nil {
			t.event(d.Event)
		} else {
			k.out = false
			t.completion(k, d.Work)
		}
		t.end()
	}
	return n
}

func (t *tracer) event(e *via.Event) {
	t.text(" ! ").text(e.Code.String())
	if e.Broken {
		t.text(" broken")
	}
	if e.Cause != nil {
		t.text(": ").text(e.Cause.Error())
	}
}

func (t *tracer) completion(k *ticket, w *via.Work) {
	t.text(" < ").text(opNames[k.op]).text(" #").num(k.seq).text(" ").
		text((w.Status | via.StatusDone).String()).text(" ").num(uint64(w.Moved))
	if w.Status&via.StatusImmediate != 0 {
		t.text(" imm ").hex(uint64(w.Immediate))
	}
}
