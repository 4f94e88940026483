package testbed

import "testing"

// Idle waits until no client is connected any more.
func (s Service) Idle(t testing.TB) {
	t.Helper()
	Eventually(t, "no client", func() (any, bool) {
		st := s.Attach.Status()
		return st.NBD, len(st.NBD.Connections) == 0
	})
}

// TargetIdle waits until a target has no initiator any more.
func TargetIdle(t testing.TB, p *Process) {
	t.Helper()
	Eventually(t, "a target without initiators", func() (any, bool) {
		st := p.Status().Targets[0]
		opens := 0
		for _, x := range st.Exports {
			opens += x.Opens
		}
		return st, st.Connections == 0 && st.Sessions == 0 && opens == 0
	})
}

// IdleFiles counts the open files of the process that clients connect to, after
// a first client.
func (s Service) IdleFiles(t testing.TB) int {
	t.Helper()
	s.FirstClient(t)
	return s.Attach.Files()
}

// FirstClient connects a client that reads and leaves. Files are counted behind
// it: a process may open a few just after it says that it is ready, and some
// with its first client.
func (s Service) FirstClient(t testing.TB) {
	t.Helper()
	k := Connect(t, s.URI)
	k.Ask("read 0 512", "ok")
	k.Disconnect()
	s.Idle(t)
	Eventually(t, "control connections alone at the target", func() (any, bool) {
		st := s.Target.Status().Targets
		for _, x := range st {
			if x.Connections > x.Sessions {
				return st, false
			}
		}
		return st, true
	})
}
