package block

// Shared is a Device that distinguishes its clients, to share it fairly between
// them. A server of several clients opens their queues with NewQueueFor; queues
// of [Device.NewQueue] belong to one client without a name.
type Shared interface {
	Device

	// NewQueueFor is NewQueue for a client: all queues of one name are one
	// client's, however many there are at a time. Names are compared for
	// equality and shown in status.
	NewQueueFor(client string, depth int) (Queue, error)
}

// NewQueueFor opens a queue for a client of a device, whether the device
// distinguishes clients or not.
func NewQueueFor(d Device, client string, depth int) (Queue, error) {
	if s, ok := d.(Shared); ok {
		return s.NewQueueFor(client, depth)
	}
	return d.NewQueue(depth)
}
