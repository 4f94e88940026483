package regcache

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// Line is a time that grows with a size: Fixed + PerByte·n nanoseconds.
type Line struct {
	Fixed   float64 `json:"fixed_ns"`
	PerByte float64 `json:"ns_per_byte"`
}

// At returns the time for n bytes in nanoseconds.
func (l Line) At(n int) float64 { return l.Fixed + l.PerByte*float64(n) }

// Calibration holds the time that a NIC takes to register and this machine
// takes to copy. A copy is warm if both buffers were used just before, and cold
// if neither was.
type Calibration struct {
	Register   Line          `json:"register"`
	Deregister Line          `json:"deregister"`
	CopyWarm   Line          `json:"copy_warm"`
	CopyCold   Line          `json:"copy_cold"`
	Samples    []Sample      `json:"samples"`
	Elapsed    time.Duration `json:"elapsed_ns"`
}

// Sample holds the minimum times of a size, in nanoseconds.
type Sample struct {
	Size       int     `json:"size"` // bytes
	Register   float64 `json:"register_ns"`
	Deregister float64 `json:"deregister_ns"`
	CopyWarm   float64 `json:"copy_warm_ns"`
	CopyCold   float64 `json:"copy_cold_ns"`
}

const (
	calibrationTime  = 12 * time.Millisecond // limit for repeated runs
	calibrationMost  = 15 * time.Millisecond // limit for the first run of each size
	calibrationRuns  = 7                     // of each size, at most
	calibrationTries = 4                     // of a size if the next one would take too long
	coldArea         = 6 << 20               // bytes that each side of cold copies cycles through
)

var calibrationSizes = [...]int{4 << 10, 64 << 10, 1 << 20}

// Calibrate measures a NIC with memory of a tag. It takes at most 20 ms on a
// machine with a free processor, keeps the minimum of a few runs of each size
// and fits lines through them. It starts no run that would exceed the limit if
// the NIC's time grows no faster than the size: a slow NIC is measured with
// fewer and smaller sizes, the smallest always. Calibrate returns the error of
// a NIC that does not register.
func Calibrate(nic Registrar, tag via.Ptag) (Calibration, error) {
	return calibrate(nic, tag, time.Now)
}

// calibrate is Calibrate with a clock.
func calibrate(nic Registrar, tag via.Ptag, now func() time.Time) (c Calibration, err error) {
	begin := now()
	largest := calibrationSizes[len(calibrationSizes)-1]
	arena, err := nic.NewArena(largest)
	if err != nil {
		return c, fmt.Errorf("calibrate: %w", err)
	}
	defer func() { err = errors.Join(err, arena.Close()) }()
	area, err := unix.Mmap(-1, 0, 2*coldArea, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		return c, fmt.Errorf("calibrate: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(area)) }()
	k := calibrator{nic: nic, tag: tag, now: now, mem: arena.Bytes()[:largest], from: area[:coldArea], to: area[coldArea:]}
	for i := 0; i < len(k.mem); i += 4096 {
		k.mem[i] = 1
	}
	if c.Samples, err = k.samples(now()); err != nil {
		return c, fmt.Errorf("calibrate: %w", err)
	}
	c.fit()
	c.Elapsed = now().Sub(begin)
	return c, nil
}

// samples measures the sizes round-robin until the time since begin is used up.
func (k *calibrator) samples(begin time.Time) ([]Sample, error) {
	list := make([]Sample, 0, len(calibrationSizes))
	var elapsed [len(calibrationSizes)]time.Duration // minimum of each size
	run := func(i int) error {
		start := k.now()
		err := k.measure(&list[i], calibrationSizes[i])
		if t := k.now().Sub(start); elapsed[i] == 0 || t < elapsed[i] {
			elapsed[i] = t
		}
		return err
	}
	for i, n := range calibrationSizes {
		// The worst case of this size follows from the size before, which is
		// measured again if the estimate is too long: another load may have
		// inflated it.
		for tries := 0; i > 0; tries++ {
			spent, ratio := k.now().Sub(begin), time.Duration(n/calibrationSizes[i-1])
			if spent+elapsed[i-1]*ratio <= calibrationMost {
				break
			}
			if tries == calibrationTries || spent+elapsed[i-1] > calibrationTime {
				return list, nil
			}
			if err := run(i - 1); err != nil {
				return nil, err
			}
		}
		list = append(list, Sample{})
		if err := run(i); err != nil {
			return nil, err
		}
	}
	for range calibrationRuns - 1 {
		for i := range calibrationSizes {
			if k.now().Sub(begin)+elapsed[i] > calibrationTime {
				return list, nil
			}
			if err := run(i); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// calibrator is the state of a calibration.
type calibrator struct {
	nic      Registrar
	tag      via.Ptag
	now      func() time.Time
	mem      []byte // of the NIC
	from, to []byte // of cold copies
	at       int    // in both
}

// measure updates the minimum times of n bytes.
func (k *calibrator) measure(s *Sample, n int) error {
	first := s.Size == 0
	s.Size = n
	least := func(p *float64, begin time.Time) {
		if ns := float64(k.now().Sub(begin)); first || ns < *p {
			*p = ns
		}
	}
	begin := k.now()
	m, err := k.nic.RegisterMem(k.mem[:n:n], (RemoteRead | RemoteWrite).attributes(k.tag))
	if err != nil {
		return err
	}
	least(&s.Register, begin)
	begin = k.now()
	if err := m.Deregister(); err != nil {
		return err
	}
	least(&s.Deregister, begin)
	if k.at+n > len(k.from) {
		k.at = 0
	}
	begin = k.now()
	copy(k.to[k.at:k.at+n], k.from[k.at:])
	least(&s.CopyCold, begin)
	begin = k.now()
	copy(k.to[k.at:k.at+n], k.from[k.at:])
	least(&s.CopyWarm, begin)
	k.at += n
	return nil
}

// fit fits lines through the samples: the slope between the smallest and the
// largest size, and the minimum of the remainders. With a single sample a
// copy's line goes through 0, and a registration takes as long for any size,
// until the first registration of a granule is measured.
func (c *Calibration) fit() {
	line := func(single Line, of func(*Sample) float64) Line {
		first, last := &c.Samples[0], &c.Samples[len(c.Samples)-1]
		if first == last {
			return Line{single.Fixed * of(first), single.PerByte * of(first)}
		}
		l := Line{PerByte: max(0, (of(last)-of(first))/float64(last.Size-first.Size))}
		rest := make([]float64, len(c.Samples))
		for i := range c.Samples {
			rest[i] = of(&c.Samples[i]) - l.PerByte*float64(c.Samples[i].Size)
		}
		l.Fixed = max(0, slices.Min(rest))
		return l
	}
	same, through := Line{Fixed: 1}, Line{PerByte: 1 / float64(calibrationSizes[0])}
	c.Register = line(same, func(s *Sample) float64 { return s.Register })
	c.Deregister = line(same, func(s *Sample) float64 { return s.Deregister })
	c.CopyWarm = line(through, func(s *Sample) float64 { return s.CopyWarm })
	c.CopyCold = line(through, func(s *Sample) float64 { return s.CopyCold })
}
