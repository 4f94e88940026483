package bench

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

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
// that is nil. release undoes both. Ends that sleep would else share a
// processor at times: a wake-up within one costs a third of that between two.
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

// Apart binds the goroutine and its thread to one processor, and every other
// thread of the process to the others, so that two ends in one process have
// processors of their own, as bind gives them to two processes. With one
// processor it does nothing. release undoes it for the threads that there are
// then, and is called on the same goroutine.
func Apart() (release func(), err error) {
	all, err := Processors()
	if err != nil || len(all) < 2 {
		return func() {}, err
	}
	var whole, others unix.CPUSet
	for i, n := range all {
		whole.Set(n)
		if i > 0 {
			others.Set(n)
		}
	}
	if err := everyThread(&others); err != nil {
		return nil, errors.Join(err, everyThread(&whole))
	}
	unbind, err := bind(&all[0])
	if err != nil {
		return nil, errors.Join(err, everyThread(&whole))
	}
	return func() {
		unbind()
		_ = everyThread(&whole) // it was possible before
	}, nil
}

// everyThread lets the threads of the process run on some processors. Threads
// made later inherit that from the one that makes them.
func everyThread(set *unix.CPUSet) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list the threads: %w", err)
	}
	for _, t := range tasks {
		id, err := strconv.Atoi(t.Name())
		if err == nil {
			err = unix.SchedSetaffinity(id, set)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return fmt.Errorf("bind thread %s: %w", t.Name(), err)
		}
	}
	return nil
}
