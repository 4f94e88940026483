package cm

var stateNames = [...]string{
	asking: "asking", requested: "requested", answered: "answered", granted: "granted",
	established: "established", disconnecting: "disconnecting", timeWait: "time-wait",
}

// State returns where a connection stands, "gone" if it is released.
func (m *Manager) State(id ID) string {
	if c := m.table.byID[id]; c != nil {
		return stateNames[c.state]
	}
	return "gone"
}

// Footprint returns how much the Manager keeps: table entries, events, messages.
func (m *Manager) Footprint() (connections, names, queuePairs, lists, alarms, events, messages int) {
	t := &m.table
	return len(t.byID), len(t.byREQ), len(t.byQP), len(t.pending) + len(t.ended) + len(t.refused),
		len(m.timers.heap), len(m.events), len(m.out.queue)
}

// Defaults is the configuration of who configures nothing.
func Defaults() Config { return Config{}.withDefaults() }

// States are the names of the states.
func States() []string { return stateNames[:] }

// Limits of what strangers can cause.
const (
	MaxEnded    = maxEnded
	MaxThink    = maxThink
	MaxInterval = maxInterval
)
