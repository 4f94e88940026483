package block

// Survival says what of a disk's data outlives the process that serves the disk.
type Survival uint8

// From the usual to the two extremes.
const (
	FlushedSurvives Survival = iota // what was flushed
	WrittenSurvives                 // whatever was answered, while the machine runs: it is in the page cache
	NothingSurvives                 // the data is the process's
)

// Surviving is a Device that knows what survives. Of one that does not, what was
// flushed does.
type Surviving interface {
	Device

	// Survival returns the same during the device's life.
	Survival() Survival
}

// SurvivalOf returns what of a device's data survives.
func SurvivalOf(d Device) Survival {
	if s, ok := d.(Surviving); ok {
		return s.Survival()
	}
	return FlushedSurvives
}
