package cm

var stateNames = [...]string{
	reqSent: "req-sent", reqReceived: "req-received", repSent: "rep-sent", repReceived: "rep-received",
	established: "established", dreqSent: "dreq-sent", timeWait: "time-wait",
}

// State returns the name of a connection's state, "gone" if it is released.
func (m *Manager) State(id ID) string {
	if c := m.table.byID[id]; c != nil {
		return stateNames[c.state]
	}
	return "gone"
}

// Footprint returns the sizes of the Manager's tables and queues.
func (m *Manager) Footprint() (connections, names, queuePairs, lists, alarms, events, messages int) {
	t := &m.table
	return len(t.byID), len(t.byREQ), len(t.byQP), len(t.pending) + len(t.ended) + len(t.refused),
		len(m.timers.heap), len(m.events), len(m.out.queue) - m.out.first
}

// Defaults returns the default configuration.
func Defaults() Config { return Config{}.withDefaults() }

// States are the names of the states.
func States() []string { return stateNames[:] }

// Limits of the state that unauthenticated peers can cause.
const (
	MaxEnded    = maxEnded
	MaxThink    = maxServiceTimeout
	MaxInterval = intervalLimit
)
