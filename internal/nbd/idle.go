package nbd

// spin takes turns until one makes progress or the time is over, and reports
// which. A client that waits for one reply at a time sends the next request a few
// microseconds after it. Of a long request the rest comes at once, and over TCP a look at the
// socket keeps packets waiting that the kernel delivers meanwhile.
func (t *transmission) spin() (bool, error) {
	if t.draining || t.sending() || !t.idle.Start(t.in.partial()) {
		return false, nil
	}
	t.counts[countSpins]++
	for t.idle.Again() {
		t.in.dry = false
		progress, err := t.turn()
		if progress || err != nil {
			t.counts[countSpinsPaid]++
			t.idle.Paid()
			return progress, err
		}
		t.counts[countCalls]++ // Again lets others run
	}
	return false, nil
}
