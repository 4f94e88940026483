package target

import (
	"fmt"

	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/latency"
	"github.com/viablk/viablk/internal/loop"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/via"
)

// The worker passes a request from owner to owner. From step 3 to step 7 its
// payload is in memory of the executor's pool, or in the disk's own.
//
//  1. completion  takes what the VI has done: a message goes to 2, a send to 4
//     or 7
//  2. command     the receiver checks it, its slot is in use; the executor gets
//     memory for it
//  3. proceed     the sender pulls a Write's payload
//  4. sent        the payload is here: the executor submits to the backend
//  5. reap        takes what the backend has finished
//  6. proceed     reposts the receive of an inline payload; the sender places a
//     Read's data and answers
//  7. sent        the answer is out: memory and slot are free
//  8. retry       resumes what waits for memory or sends

// iterate processes completions in the order in which a request travels, and
// rings one doorbell. It reports whether it did any work.
func (w *worker) iterate() bool {
	if w.iterations++; w.iterations%publishIterations == 0 {
		now := w.sleeper.scheduler.Now()
		w.publish()
		w.measureAges()
		w.exports.publishLatency()
		w.tendRekey(now)
	}
	if len(w.polled) == 0 {
		w.polled = w.done[:w.carrier.Poll(w.done[:])]
	}
	worked := len(w.polled) > 0
	for len(w.polled) > 0 && w.payload < w.share && w.failure == nil { // those after a protocol error are ignored
		c := &w.polled[0]
		w.polled = w.polled[1:]
		w.completion(c)
	}
	for _, q := range w.exports.queues {
		if q.active > 0 && w.reap(q) {
			worked = true
		}
	}
	if worked {
		w.retry()
		w.carrier.Doorbell()
	}
	w.stopwatch.Expire()
	return worked
}

// completion handles a completion of the VI.
func (w *worker) completion(e *via.Completion) {
	switch {
	case e.Status.Failed():
		if e.Status&via.StatusFlushed == 0 {
			w.fail(fmt.Errorf("transfer failed: %v", e.Status))
		}
	case e.Recv:
		w.watch.heard = true
		if err := w.message(e); err != nil {
			w.fail(err)
		}
	default:
		w.sent(w.carrier.Sent(e))
	}
}

// message handles an arrived message: a keepalive, a control message or a
// command. The receive is posted again before anything is answered, so that the
// answer can stand for the credit.
func (w *worker) message(e *via.Completion) error {
	r := w.carrier.Arrived(e)
	switch {
	case w.control.closing || w.execute.aborted && e.Status&via.StatusImmediate == 0:
		return w.receive.repost(r) // messages after a logout are ignored
	case e.Status&via.StatusImmediate != 0:
		// The length is ignored: of an RDMA Write it is not the length of r.
		if err := w.receive.repost(r); err != nil {
			return err
		}
		if err := w.receive.immediate(wire.Immediate(e.Immediate), e.Length); err != nil {
			return err
		}
		return w.send.acknowledgeKeepalive(0)
	}
	length, err := w.carrier.Open(r, e.Length)
	switch {
	case err != nil:
		return err
	case length < wire.HeaderSize:
		return fmt.Errorf("message of %d bytes", length)
	case wire.RawOpcode(r.Head).IsCommand():
		w.command(r, length, false)
		return nil
	}
	msg := w.control.join(r, length)
	if err := w.receive.repost(r); err != nil {
		return err
	}
	return w.controlMessage(msg)
}

// command starts a command that passes the checks. A protocol error ends the
// connection; a refusal of the export is answered.
func (w *worker) command(rc *carrier.Receive, length uint32, stashed bool) {
	r, status, err := w.receive.command(rc, length, stashed)
	if err != nil {
		w.fail(err)
		return
	}
	if r == nil {
		return // stashed
	}
	w.sleeper.served++
	loop.MayBlock() // a copy of a mapped file too, which no queue has
	r.began, r.given, r.waited = w.stopwatch.Now(), latency.NotGiven, false
	w.execute.timer.discard()
	switch {
	case status != wire.StatusOK:
	case w.execute.aborted:
		status = wire.StatusAborted // it was stashed
	case w.conn.signals.halt.Load() != 0:
		status = wire.StatusShutdown
	default:
		status = w.exports.check(r)
	}
	if status != wire.StatusOK {
		w.execute.refuse(r, status)
	} else {
		if op := r.command.Opcode; op == wire.OpRead || op == wire.OpWrite {
			w.payload += uint64(r.command.Length)
		}
		err = w.execute.start(r, w.receive.busy == 1)
	}
	w.proceed(r, err)
}

// proceed gives a request that left the executor to the sender, or ends the
// connection. The receive that an answered request holds is reposted first.
func (w *worker) proceed(r *request, err error) {
	if err == nil && r.state == awaitAnswer {
		w.answered(r)
		err = w.receive.releaseReceive(r)
	}
	if err == nil && (r.state == awaitPull || r.state == awaitAnswer) {
		err = w.send.submit(r)
	}
	if err != nil {
		w.fail(err)
	}
}

// answered notes that a request to an export is answered.
func (w *worker) answered(r *request) {
	if r.handle == nil || r.handle.queue.recorder == nil {
		return
	}
	kind := latency.Other
	if int(r.command.Opcode) < len(kinds) {
		kind = kinds[r.command.Opcode]
	}
	w.stopwatch.End(r.handle.queue.recorder, kind, r.began, r.given)
}

// kinds are the operations as they are counted; the others are latency.Other.
var kinds = [...]latency.Operation{wire.OpRead: latency.Read, wire.OpWrite: latency.Write, wire.OpFlush: latency.Flush}

// logout goes on with a logout: it drops the commands that have not begun, and
// answers it after all of them.
func (w *worker) logout() {
	if w.control.loggingOut && w.login.role == wire.RoleIO && !w.execute.aborted {
		w.abort()
	}
	if w.receive.busy > 0 {
		return
	}
	if err := w.control.answerLogout(); err != nil {
		w.fail(err)
	}
}

// abort drops the commands that have not begun.
func (w *worker) abort() {
	w.execute.aborted = true
	for _, q := range w.exports.queues {
		q.queue.Abort()
	}
	for !w.execute.awaitMemory.Empty() {
		r := w.execute.awaitMemory.Pop()
		w.execute.abort(r)
		w.proceed(r, nil)
	}
	for i := range w.receive.requests { // those in line for sends stay there
		w.execute.abort(&w.receive.requests[i])
	}
}

// reap starts what was submitted and answers what the backend finished.
func (w *worker) reap(q *exportQueue) bool {
	done := w.execute.reap(q)
	for _, b := range done {
		r := &w.receive.requests[b.User]
		w.execute.finish(r, b)
		w.proceed(r, nil)
	}
	return len(done) > 0
}

// retry resumes requests that wait for memory or sends, in FIFO order, so none
// starves.
func (w *worker) retry() {
	err := w.send.resumeKeepalive()
	for err == nil {
		var r *request
		if r, err = w.execute.resume(); r == nil {
			break
		}
		w.proceed(r, err)
	}
	if err == nil {
		err = w.send.resume()
	}
	if err != nil {
		w.fail(err)
	}
}

// sent handles the completion of a send: after the last part of a pull the
// request goes to the backend, after the last part of the answer the slot is
// free.
func (w *worker) sent(s *carrier.Send) {
	w.carrier.FreeSend(s)
	if s.Step != stepRequest {
		return
	}
	r := &w.receive.requests[s.User]
	r.pending--
	if r.pending > 0 {
		return
	}
	if r.state == pulling {
		w.proceed(r, w.execute.pulled(r))
		return
	}
	w.execute.timer.stop(r)
	w.execute.releaseMemory(r)
	w.exports.finished(r)
	if rc, length := w.receive.free(r); rc != nil {
		w.command(rc, length, true)
	}
}
