package nbd

// busyPoll iterates until one makes progress or the time is over, and reports
// which. A client that waits for one reply at a time sends the next request a
// few microseconds after it. Of a long request the rest comes at once, and over
// TCP a poll of the socket keeps packets waiting that the kernel delivers
// meanwhile.
func (t *transmission) busyPoll() (bool, error) {
	if t.draining || t.sending() || !t.spinner.Start(t.in.partial(), t.counts.requests()) {
		return false, nil
	}
	t.counts[countBusyPolls]++
	for t.spinner.Continue() {
		t.timing.At(t.spinner.Latest().Sub(t.epoch))
		t.in.wouldBlock = false
		progress, err := t.iterate()
		if progress || err != nil {
			t.counts[countPollHits]++
			t.spinner.Hit()
			t.counts[countBusyPollTime] = uint64(t.spinner.Spent())
			return progress, err
		}
		t.counts[countSyscalls]++ // Continue lets others run
	}
	t.counts[countBusyPollTime] = uint64(t.spinner.Spent())
	return false, nil
}
