package bench

import (
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
)

// bufferAlign is the alignment of buffers: a page, as for blocks of a disk.
const bufferAlign = 4096

// station is the memory of one end: an area that it sends from and copies from,
// and an area that messages and RDMA arrive in. Both are one region of an
// arena, which the peer may read and write.
type station struct {
	nic   *via.NIC
	tag   via.Ptag
	level via.ReliabilityLevel
	arena *via.Arena
	mem   *via.Memory
	area  int // bytes of each area
}

// openStation maps and touches the memory.
func openStation(nic *via.NIC, level via.ReliabilityLevel, area int) (*station, error) {
	s := &station{nic: nic, level: level, area: area}
	var err error
	if s.tag, err = nic.CreatePtag(); err != nil {
		return nil, err
	}
	if s.arena, err = nic.NewArena(2 * area); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.mem, err = nic.RegisterMem(s.arena.Bytes(), via.MemAttributes{
		Ptag: s.tag, EnableRdmaWrite: true, EnableRdmaRead: s.reads(),
	})
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	clear(s.arena.Bytes()) // pages exist before anything is measured
	return s, nil
}

// reads reports whether RDMA Read works.
func (s *station) reads() bool { return s.nic.Limits().RdmaReadLevels&s.level != 0 }

// out and in return the area to send from, and the one that peers write to.
func (s *station) out() []byte { return s.arena.Bytes()[:s.area] }
func (s *station) in() []byte  { return s.arena.Bytes()[s.area:] }

// bufferSize returns the distance of two buffers.
func bufferSize(size int) int {
	if size < bufferAlign {
		return (max(size, 1) + 63) &^ 63
	}
	return (size + bufferAlign - 1) &^ (bufferAlign - 1)
}

// buffers returns how many of n buffers of a size fit an area; where more are
// in use than fit, they share.
func (s *station) buffers(size, n int) int { return max(1, min(n, s.area/bufferSize(size))) }

// close gives the memory back. The caller has closed its users.
func (s *station) close() error {
	var errs []error
	if s.mem != nil {
		errs = append(errs, s.mem.Deregister())
	}
	if s.arena != nil {
		errs = append(errs, s.arena.Close())
	}
	errs = append(errs, s.nic.DestroyPtag(s.tag))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release the memory of the benchmark: %w", err)
	}
	return nil
}
