package workload

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

// Exercise does a number of random operations to a region, whose content it
// replaces, and compares what is read, and all of it now and then, with a
// model. The error of a mismatch has the history.
func Exercise(r Region, seed uint64, operations int) (Counts, error) {
	x := &exercise{
		region: r, limits: r.Limits(), kinds: r.Kinds(), random: rand.New(rand.NewPCG(seed, 0)), noise: newNoise(seed, 0),
	}
	// Memory that is good for direct I/O.
	var err error
	if x.buffer, err = unix.Mmap(-1, 0, int(x.limits.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return x.counts, fmt.Errorf("get a buffer: %w", err)
	}
	defer func() { _ = unix.Munmap(x.buffer) }()
	for _, k := range x.kinds {
		x.weight += weights[k]
	}
	if err = x.begin(); err == nil {
		for i := 0; i < operations && err == nil; i++ {
			if err = x.step(); err == nil && i%checkEvery == checkEvery-1 {
				err = x.checkAll()
			}
		}
	}
	if err == nil {
		err = x.checkAll()
	}
	if err != nil {
		err = fmt.Errorf("seed %d: %w", seed, err)
	}
	return x.counts, err
}

// newNoise returns content that two different pairs of numbers do not share.
func newNoise(a, b uint64) *rand.ChaCha8 {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], a)
	binary.LittleEndian.PutUint64(key[8:], b)
	return rand.NewChaCha8(key)
}

// checkEvery is after how many operations all of the region is compared.
const checkEvery = 250

// Counts are how often what was done, by kind.
type Counts [kinds]int

func (c Counts) String() string {
	var b bytes.Buffer
	for k, n := range c {
		if n > 0 {
			fmt.Fprintf(&b, "%v %d, ", Kind(k), n)
		}
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte(", ")))
}

// exercise is a region with its model.
type exercise struct {
	region Region
	limits Limits
	kinds  []Kind
	weight int // of all kinds
	random *rand.Rand
	noise  *rand.ChaCha8
	buffer []byte

	model   model
	history history
	counts  Counts
}

// begin gives the region a content that is known.
func (x *exercise) begin() error {
	if !x.limits.Fixed {
		return x.do(Op{Kind: Truncate})
	}
	x.model = make(model, x.limits.Size)
	return x.do(Op{Kind: WriteDirect, Length: x.limits.Size})
}

// step does one operation.
func (x *exercise) step() error {
	for {
		o := Op{Kind: x.choose()}
		if x.place(&o) {
			return x.do(o)
		}
	}
}

// choose chooses a kind.
func (x *exercise) choose() Kind {
	n := x.random.IntN(x.weight)
	for _, k := range x.kinds {
		if n -= weights[k]; n < 0 {
			return k
		}
	}
	panic("exerciser: the weights have another sum")
}

// place chooses where an operation goes, and reports whether there is a place.
func (x *exercise) place(o *Op) bool {
	size := int64(len(x.model))
	switch o.Kind {
	case Read:
		x.within(o, 1, size)
	case ReadDirect:
		x.within(o, x.limits.Direct, size)
	case ReadMapped, WriteMapped:
		x.within(o, 1, size)
		o.Length = min(o.Length, size-o.Offset)
	case Write:
		x.within(o, 1, x.limits.Size)
	case WriteDirect:
		x.within(o, x.limits.Direct, x.limits.Size)
	case Truncate:
		o.Offset = x.random.Int64N(x.limits.Size + 1)
		if x.random.IntN(4) == 0 {
			o.Offset -= o.Offset % x.limits.Block
		}
		return true
	case Punch, Zero:
		x.within(o, x.limits.unit(x.random), size)
	case Allocate:
		x.within(o, 1, x.limits.Size)
	case Collapse:
		x.within(o, x.limits.Block, size-1)
		return o.Length > 0 && o.Offset+o.Length < size
	case Insert:
		x.within(o, x.limits.Block, x.limits.Size-size)
		o.Offset = 0
		if size > 0 {
			o.Offset = x.random.Int64N(size)
			o.Offset -= o.Offset % x.limits.Block
		}
		return o.Length > 0 && o.Offset < size && size+o.Length <= x.limits.Size
	case Discard, ZeroOut:
		x.within(o, x.limits.Block, size)
	default:
		return true
	}
	return o.Length > 0
}

// unit returns what offsets and lengths are multiples of: of nothing, or of
// blocks, which take other ways in file systems.
func (l Limits) unit(random *rand.Rand) int64 {
	if random.IntN(2) == 0 {
		return l.Block
	}
	return 1
}

// within chooses a range that begins before an end and may go beyond it, but
// not beyond the region, whose offset and length are multiples of a unit. Most
// ranges are short.
func (x *exercise) within(o *Op, unit, end int64) {
	if end <= 0 {
		return
	}
	longest := x.limits.Size / 4
	for range x.random.IntN(4) {
		longest /= 8
	}
	o.Offset = x.random.Int64N(end)
	o.Offset -= o.Offset % unit
	o.Length = unit + x.random.Int64N(max(longest, 1))
	o.Length = min(o.Length, x.limits.Size-o.Offset)
	o.Length -= o.Length % unit
}

// do does an operation to region and model, and compares what it reads.
func (x *exercise) do(o Op) error {
	x.history = append(x.history, o)
	x.counts[o.Kind]++
	switch o.Kind {
	case Read, ReadDirect, ReadMapped:
		return x.read(o)
	case Discard:
		return x.discard(o)
	}
	var p []byte
	switch o.Kind {
	case Write, WriteDirect, WriteMapped:
		p = x.buffer[:o.Length]
		_, _ = x.noise.Read(p) // never fails
	}
	n, err := x.region.Do(o, p)
	if err == nil && n != len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("%v: %w\n%s", o, err, x.history.tell(o.Offset))
	}
	x.model.apply(o, p)
	return nil
}

// read compares.
func (x *exercise) read(o Op) error {
	want := x.model.at(o)
	got := x.buffer[:o.Length]
	for i := range got {
		got[i] = 0xa5 // what is not filled in
	}
	n, err := x.region.Do(o, got)
	if err != nil {
		return fmt.Errorf("%v: %w\n%s", o, err, x.history.tell(o.Offset))
	}
	if n != len(want) {
		return fmt.Errorf("%v: %#x bytes, not %#x\n%s", o, n, len(want), x.history.tell(o.Offset+int64(min(n, len(want)))))
	}
	return x.compare(o, got[:n], want)
}

// compare says where something differs from the model.
func (x *exercise) compare(o Op, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	first, last, n := -1, 0, 0
	for i := range want {
		if got[i] != want[i] {
			if first < 0 {
				first = i
			}
			last, n = i, n+1
		}
	}
	end := min(first+16, len(want))
	return fmt.Errorf("%v: %#x bytes between %#x and %#x are wrong: they begin with % x, not % x\n%s",
		o, n, o.Offset+int64(first), o.Offset+int64(last)+1, got[first:end], want[first:end], x.history.tell(o.Offset+int64(first)))
}

// sector is what is discarded, or not, as a whole, in bytes.
const sector = 512

// discard discards, and finds out what there is now: what there was, or zeroes.
func (x *exercise) discard(o Op) error {
	// A discard also drops dirty pages, so write them back first.
	if _, err := x.region.Do(Op{Kind: Sync}, nil); err != nil {
		return fmt.Errorf("before %v: %w", o, err)
	}
	if _, err := x.region.Do(o, nil); err != nil {
		return fmt.Errorf("%v: %w\n%s", o, err, x.history.tell(o.Offset))
	}
	read := Op{ReadDirect, o.Offset, o.Length}
	got := x.buffer[:o.Length]
	n, err := x.region.Do(read, got)
	if err == nil && n != len(got) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("%v: %w", read, err)
	}
	for at := int64(0); at < o.Length; at += sector {
		now, was := got[at:][:sector], x.model[o.Offset+at:][:sector]
		if slices.Max(now) == 0 {
			clear(was)
		}
		if err := x.compare(Op{Discard, o.Offset + at, sector}, now, was); err != nil {
			return err
		}
	}
	return nil
}

// checkAll compares the whole region.
func (x *exercise) checkAll() error {
	size, err := x.region.Size()
	if err != nil {
		return err
	}
	if size != int64(len(x.model)) {
		return fmt.Errorf("the size is %#x, not %#x\n%s", size, len(x.model), x.history.tell(min(size, int64(len(x.model)))))
	}
	if size == 0 {
		return nil
	}
	return x.do(Op{Kind: Read, Length: size})
}
