package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
)

// piece is a part of the disks that is one thing throughout on either. It is
// data unless the disk says that it is zeroes.
type piece struct {
	off, length                 int64
	sourceZero, destinationZero bool
}

// extentMap is what a disk consists of, as far as it was asked.
type extentMap struct {
	t       *Transfer
	asker   *asker // nil: the disk cannot tell
	from    int64  // where extents begin
	extents []block.Extent
	answer  []block.Extent
	aligned []block.Extent
}

// Bounds of a question for extents.
const (
	askedExtents = 1024
	askedLength  = 1 << 30 // bytes
)

// newExtentMap returns the map of a side. The caller closes it.
func (t *Transfer) newExtentMap(s Side) (*extentMap, error) {
	m := &extentMap{t: t}
	if s.Device.Info().Features&block.CanStatus == 0 {
		return m, nil
	}
	q, err := s.Device.NewQueue(1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	m.asker = &asker{queue: q, wake: t.wake}
	m.answer = make([]block.Extent, 0, askedExtents)
	m.aligned = make([]block.Extent, 0, askedExtents)
	return m, nil
}

// at returns how far the disk is one thing from off on, which is not less than
// before, and whether that is zeroes. It fails only if ctx ends.
func (m *extentMap) at(ctx context.Context, off int64) (length int64, zero bool, err error) {
	for {
		for len(m.extents) > 0 && m.from+m.extents[0].Length <= off {
			m.from += m.extents[0].Length
			m.extents = m.extents[1:]
		}
		if len(m.extents) > 0 {
			return m.from + m.extents[0].Length - off, m.extents[0].Flags&block.Zero != 0, nil
		}
		if m.asker == nil {
			return m.t.size - off, false, nil
		}
		if err := m.ask(ctx, off); err != nil {
			return 0, false, err
		}
	}
}

// ask asks for extents from off on. A disk that fails to tell has data: a read
// will meet the reason, if there is one.
func (m *extentMap) ask(ctx context.Context, off int64) error {
	r := &block.Request{Op: block.Status, Offset: off, Length: min(m.t.size-off, askedLength), Extents: m.answer[:0]}
	if err := m.asker.do(ctx, r); err != nil {
		return err
	}
	m.from = off
	m.extents = append(m.aligned[:0], block.Extent{Length: r.Length})
	if r.Err == nil && len(r.Extents) > 0 {
		m.extents = block.AlignExtents(m.aligned[:0], r.Extents, m.t.block)
	}
	return nil
}

// close ends the map.
func (m *extentMap) close() error {
	if m == nil || m.asker == nil {
		return nil
	}
	return m.asker.queue.Close()
}

// plan sends runs of pieces, in the order of the disks.
func (t *Transfer) plan(ctx context.Context, runs chan<- piece) (err error) {
	var source, destination *extentMap
	defer func() { err = errors.Join(err, source.close(), destination.close()) }()
	if source, err = t.newExtentMap(t.config.Source); err != nil {
		return err
	}
	destination = &extentMap{t: t}
	if !t.config.Allocate {
		if destination, err = t.newExtentMap(t.config.Destination); err != nil {
			return err
		}
	}
	for off := int64(0); off < t.size; {
		p := piece{off: off}
		if p.length, p.sourceZero, err = source.at(ctx, off); err != nil {
			return err
		}
		var length int64
		if length, p.destinationZero, err = destination.at(ctx, off); err != nil {
			return err
		}
		p.length = min(p.length, length, t.size-off)
		p.length = cut(p, t.limit(p)*runPieces)
		select {
		case runs <- p:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		off += p.length
	}
	return nil
}

// runPieces is how many pieces a worker receives at a time. Each receive may
// wake the planner, which costs more than a piece does.
const runPieces = 8

// limit returns the length of a piece of a run that a worker handles at a time,
// at most.
func (t *Transfer) limit(run piece) int64 {
	if run.sourceZero && (run.destinationZero || t.config.Mode != Compare) {
		return t.zero
	}
	return t.length
}

// cut returns the length of what comes first of a run. It ends at a multiple of
// limit, so that requests stay aligned.
func cut(run piece, limit int64) int64 { return min(run.length, limit-run.off%limit) }
