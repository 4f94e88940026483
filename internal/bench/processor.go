package bench

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Processors returns the processors that this process may use, in ascending
// order.
func Processors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("ask for the processors: %w", err)
	}
	var all []int
	for n := 0; len(all) < set.Count(); n++ {
		if set.IsSet(n) {
			all = append(all, n)
		}
	}
	return all, nil
}

// bind locks the goroutine to its thread, and the thread to a processor unless
// that is nil. release undoes both. Ends that sleep would else share a processor
// at times: a wake-up within one costs a third of that between two.
func bind(processor *int) (release func(), err error) {
	runtime.LockOSThread()
	if processor == nil {
		return runtime.UnlockOSThread, nil
	}
	var before, only unix.CPUSet
	err = unix.SchedGetaffinity(0, &before)
	only.Set(*processor)
	if err == nil {
		err = unix.SchedSetaffinity(0, &only)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("bind a thread to processor %d: %w", *processor, err)
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &before) // it was possible before
		runtime.UnlockOSThread()
	}, nil
}
