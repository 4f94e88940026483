package activity

import (
	"slices"
	"time"
)

// Tracker compares states. The zero value has seen none. It has one user.
type Tracker struct {
	last     State
	exports  map[Key]*tracked
	sessions map[sessionKey]*Session
}

// tracked is an export in the last state.
type tracked struct {
	counters *Counters
	answered time.Time // when requests were last answered, or none was in flight
}

// sessionKey names a client.
type sessionKey struct {
	pid int
	id  string
}

// ClientRow is what a client did in an interval.
type ClientRow struct {
	*Session
	ReadRate, WriteRate   float64 // by the second
	ReadBytes, WriteBytes float64
	Waited                float64 // share of its requests that waited; -1 without
}

// Rows is what happened between two states, in the order of the later one.
type Rows struct {
	Time    time.Time
	Exports []Row
	Clients []ClientRow
	Paths   []Path
}

// exportKey names an export over all faces.
type exportKey struct {
	pid  int
	name string
}

// Add compares a state with the last one, and keeps it as such: the caller
// changes it no more.
func (t *Tracker) Add(s State) Rows {
	rows := Rows{Time: s.Time, Paths: s.Paths}
	exports := make(map[Key]*tracked, len(s.Exports))
	total, throttled := make(map[exportKey]time.Duration), make(map[exportKey]time.Duration)
	for i := range s.Exports {
		now := &s.Exports[i]
		x := &tracked{counters: now, answered: s.Time}
		r := newRow(now, now, 0)
		if before := t.exports[now.Key]; before != nil && before.counters.Started.Equal(now.Started) {
			earlier := before.counters
			r = newRow(now, earlier, s.Time.Sub(t.last.Time))
			if r.answered(earlier) == 0 && now.InFlight > 0 && earlier.InFlight > 0 {
				x.answered = before.answered
				r.Silent = s.Time.Sub(x.answered)
			}
			k := exportKey{now.PID, now.Export}
			for o := range r.Operations {
				total[k] += r.Operations[o].total
			}
			throttled[k] = max(0, now.Throttled-earlier.Throttled)
		}
		exports[now.Key] = x
		rows.Exports = append(rows.Exports, r)
	}
	for i := range rows.Exports {
		r := &rows.Exports[i]
		k := exportKey{r.PID, r.Export}
		r.place(total[k], throttled[k])
	}
	rows.Clients = t.clients(&s)
	t.last, t.exports = s, exports
	return rows
}

// clients compares the clients of a state with those of the last one.
func (t *Tracker) clients(s *State) []ClientRow {
	interval := s.Time.Sub(t.last.Time).Seconds()
	sessions := make(map[sessionKey]*Session, len(s.Sessions))
	rows := make([]ClientRow, 0, len(s.Sessions))
	for i := range s.Sessions {
		now := &s.Sessions[i]
		r := ClientRow{Session: now, Waited: -1}
		k := sessionKey{now.PID, now.ID}
		sessions[k] = now
		if before := t.sessions[k]; before != nil && interval > 0 {
			reads, writes := since(now.Reads, before.Reads), since(now.Writes, before.Writes)
			r.ReadRate, r.WriteRate = float64(reads)/interval, float64(writes)/interval
			r.ReadBytes = float64(since(now.BytesRead, before.BytesRead)) / interval
			r.WriteBytes = float64(since(now.BytesWritten, before.BytesWritten)) / interval
			if n := reads + writes; n > 0 {
				r.Waited = min(1, float64(since(now.Waits, before.Waits))/float64(n))
			}
		}
		rows = append(rows, r)
	}
	t.sessions = sessions
	return rows
}

// Of returns the clients of an export by its way in.
func (r *Rows) Of(k Key) []ClientRow {
	var of []ClientRow
	for _, c := range r.Clients {
		if c.PID == k.PID && c.Face == k.Face && slices.Contains(c.Exports, k.Export) {
			of = append(of, c)
		}
	}
	return of
}
