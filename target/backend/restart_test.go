package backend

import (
	"time"

	"github.com/viablk/viablk/internal/block"
)

// nbd is what NBD clients do: some only look.
func (h *history) nbd() {
	n, err := h.disk.NBD("n", false, func(string) {})
	if err != nil {
		h.fail("an NBD client: %v", err)
		return
	}
	defer n.Release()
	if h.coin(3) {
		h.note("an NBD client looks")
		return
	}
	h.value++
	h.note("an NBD client writes %d", h.value)
	if err := n.BeforeWrite(); err != nil {
		h.fail("an NBD client: %v", err)
	}
	disk, err := block.NewDisk(h.device)
	if err == nil {
		_, err = disk.WriteAt(stamp(h.value), h.random.Int64N(mediumBlocks)*mediumBlock)
	}
	if err != nil {
		h.fail("an NBD client: %v", err)
		return
	}
	if err := disk.Close(); err != nil {
		h.fail("an NBD client: %v", err)
	}
	h.overwritten(nil)
}

// others use the disk while a is away.
func (h *history) others() {
	switch h.random.IntN(8) {
	case 0:
		h.nbd()
	case 1:
		h.over()
		c := h.attach("c", h.two, false)
		if c == nil {
			return
		}
		h.uses(c)
		c.close(h.t)
	case 2, 3:
		h.comeB()
	}
}

// uses is what another client does: some only look.
func (h *history) uses(c *client) {
	if h.coin(3) {
		return
	}
	r := h.write([]block.Flags{0, block.FUA}[h.random.IntN(2)])
	h.wrote(c, r, c.do(r))
	if h.coin(2) {
		h.flush(c)
	}
}

// comeB has b come, or come back, and go: over a third provider that is cut.
func (h *history) comeB() {
	h.three.start(h.t, h.device, h.disk, h.limits())
	if h.b == nil {
		h.b = h.attach("b", h.three, false)
	} else if !h.back(h.b, 0, nil) {
		h.b.close(h.t)
		h.b = nil
	}
	if h.b != nil && h.failure == "" {
		h.uses(h.b)
	}
	losses := uint64(0)
	if h.b != nil {
		losses = lossesOf(h.b)
	}
	h.three.stop(h.t)
	if h.b != nil {
		h.gone(h.b, losses)
	}
}

// cut loses the connections of a.
func (h *history) cut() {
	h.note("a is cut off")
	losses := lossesOf(h.a)
	h.one.stop(h.t)
	h.gone(h.a, losses)
	pending := h.pending()
	h.others()
	h.serve(h.limits())
	h.returned(losses, pending)
}

// preempt has another client take the disk from a, and leave.
func (h *history) preempt() {
	h.note("c preempts a")
	losses := lossesOf(h.a)
	h.over()
	c := h.attach("c", h.two, true)
	if c == nil {
		return
	}
	h.overwritten(c)
	h.uses(c)
	c.close(h.t)
	h.returned(losses, nil)
}

// restart ends the process, by SIGKILL or SIGTERM, and starts another, perhaps
// on a machine that was started again, perhaps with another file.
func (h *history) restart(kill bool) {
	losses := lossesOf(h.a)
	if kill {
		h.note("the target is killed")
		h.kill()
	} else {
		h.end()
	}
	h.gone(h.a, losses)
	if h.failure != "" {
		return
	}
	pending := h.pending()
	h.happens()
	if h.coin(2) {
		h.powerCut()
	}
	m := h.medium
	if m.failed && h.coin(2) {
		h.note("a person accepts that writes are lost")
		h.accept()
		m.failed = false
	}
	failing := m.unclean && m.boot == h.boots && h.coin(6)
	if failing {
		h.note("the flush at the start fails")
		m.failing, m.failed = true, true
		h.losing()
	}
	if m.unclean && m.boot != h.boots {
		h.losing()
	}
	h.start()
	m.failing = false
	h.others()
	h.serve(h.limits())
	h.returned(losses, pending)
}

// end is SIGTERM. The disk may fail before the client is told that everything
// is durable, or after that.
func (h *history) end() {
	m := h.medium
	early := h.coin(6)
	late := !early && h.coin(6)
	h.note("the target is ended; the disk fails before the logout %v, after it %v", early, late)
	m.failing = early
	if !early && !h.latched {
		h.a.dirty = false
	}
	clean := !early && !late && !h.latched
	if (early || late) && !h.latched {
		m.failed = true
		h.losing()
	}
	h.terminate(late)
	if clean {
		m.unclean = false
	}
}

// happens is what becomes of the file while no target serves it.
func (h *history) happens() {
	m := h.medium
	aside := func() { m.move(h.t, h.file()) }
	replace := func(by *medium) {
		by.move(h.t, h.path)
		h.medium = by
	}
	switch h.random.IntN(12) {
	case 0:
		h.note("another file has the name")
		aside()
		replace(newMedium(h.t, h.file()))
	case 1:
		h.note("another disk has the name")
		aside()
		replace(newMedium(h.t, h.file()))
		h.open()
		h.terminate(false)
	case 2:
		h.note("the file is removed and made again")
		aside() // as removed: inode numbers are not used again
		h.medium = newMedium(h.t, h.path)
	case 3:
		if h.backup != nil {
			h.note("the old copy is restored")
			aside()
			replace(h.backup)
			h.backup = nil
		}
	case 4:
		h.note("another disk has the name for a while")
		aside()
		other := newMedium(h.t, h.path)
		h.medium = other
		h.open()
		h.terminate(false)
		other.move(h.t, h.file())
		replace(m)
	case 5:
		if !m.unclean {
			h.note("another program writes")
			h.value++
			m.scribble(h.t, h.value)
			h.overwritten(nil)
		}
	}
}

// powerCut starts the machine again, perhaps while a process opened the disk:
// the record that it wrote is lost then.
func (h *history) powerCut() {
	m := h.medium
	if h.coin(4) {
		h.note("the machine stops while the target opens the disk")
		record, times := m.record(h.t), m.times(h.t)
		h.open()
		h.kill()
		m.setRecord(h.t, record) // it was stored first
		m.setTimes(h.t, times)
	}
	h.note("the machine is started again")
	m.powerCut(h.t, func() bool { return h.coin(2) })
	h.reboot()
}

// gone waits until the client knows that its target is lost.
func (h *history) gone(c *client, losses uint64) {
	for began := time.Now(); lossesOf(c) == losses && c.device.Err() == nil; time.Sleep(50 * time.Microsecond) {
		if time.Since(began) > verdictTime {
			h.fail("%s does not notice that its target is gone", c.name)
			return
		}
	}
}
