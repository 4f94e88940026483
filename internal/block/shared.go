package block

// Shared is a Device that tells its clients apart, to share it fairly between
// them. Who serves it to several clients opens their queues with NewQueueFor;
// queues of [Device.NewQueue] are those of one client without a name.
type Shared interface {
	Device

	// NewQueueFor is NewQueue for a client: all queues of one name are one client's,
	// however many there are at a time. Names are for equality, and for people.
	NewQueueFor(client string, depth int) (Queue, error)
}

// NewQueueFor opens a queue for a client of a device, whether the device tells
// clients apart or not.
func NewQueueFor(d Device, client string, depth int) (Queue, error) {
	if s, ok := d.(Shared); ok {
		return s.NewQueueFor(client, depth)
	}
	return d.NewQueue(depth)
}
