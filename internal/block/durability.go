package block

// Durability is the data of a disk that outlives the process that serves it.
type Durability uint8

// The zero Durability is the common case.
const (
	FlushedOnly Durability = iota // flushed writes survive a restart of the process
	// answered writes survive, while the machine runs: they are in the page
	// cache
	OutlivesProcess
	Volatile // the data ends with the process, or with the one that takes over
)

// DurabilityReporter is a Device that reports its durability. Every other
// Device is FlushedOnly.
type DurabilityReporter interface {
	Device

	// Durability returns the same during the device's life.
	Durability() Durability
}

// DurabilityOf returns the durability of a device.
func DurabilityOf(d Device) Durability {
	if s, ok := d.(DurabilityReporter); ok {
		return s.Durability()
	}
	return FlushedOnly
}
