package block_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/viablk/viablk/internal/block"
)

// described is a device of which only the description counts.
type described struct {
	block.Device
	info block.Info
	size *int64 // in place of that of info, if it is there
}

func (d described) Info() block.Info {
	if d.size != nil {
		d.info.Size = *d.size
	}
	return d.info
}

type mapped struct{ described }

func (mapped) Memory() []byte                 { return []byte("disk") }
func (mapped) Ranges() *block.Ranges          { return nil }
func (mapped) Access(int64, int64, bool) bool { return true }

type fileMapped struct{ described }

func (fileMapped) Mapping() []byte            { return []byte("disk") }
func (fileMapped) Resident(int64, int64) bool { return true }
func (fileMapped) Ranges() *block.Ranges      { return nil }

// A disk that changes its size does so under its adjustments, in whole blocks.
func TestAdjustedDiskIsResized(t *testing.T) {
	size := int64(1 << 20)
	for name, d := range map[string]func(described) block.Device{
		"plain":    func(d described) block.Device { return d },
		"mapped":   func(d described) block.Device { return mapped{d} },
		"windowed": func(d described) block.Device { return fileMapped{d} },
	} {
		disk := described{info: block.Info{MinimumBlock: 512, PreferredBlock: 4096, MaximumPayload: 32 << 20}, size: &size}
		size = 1 << 20
		a, err := block.Adjust(d(disk), block.Adjustments{MinimumBlock: 4096})
		if err != nil {
			t.Fatal(err)
		}
		for at, want := range map[int64]int64{1 << 20: 1 << 20, 2<<20 + 4096 + 512: 2<<20 + 4096, 4095: 0} {
			size = at
			if got := a.Info(); got.Size != want || got.MinimumBlock != 4096 {
				t.Errorf("%s: a disk of %d bytes is %+v, want %d bytes", name, at, got, want)
			}
		}
	}
}

func TestAdjust(t *testing.T) {
	on, off := true, false
	disk := block.Info{
		Size: 1 << 20, MinimumBlock: 512, PreferredBlock: 4096, MaximumPayload: 32 << 20,
		Features: block.CanFlush | block.CanMultiConn,
	}
	changed := func(change func(*block.Info)) *block.Info {
		i := disk
		change(&i)
		return &i
	}
	for name, row := range map[string]struct {
		a    block.Adjustments
		want *block.Info // nil: refused
	}{
		"nothing":        {block.Adjustments{}, &disk},
		"minimum":        {block.Adjustments{MinimumBlock: 1024}, changed(func(i *block.Info) { i.MinimumBlock = 1024 })},
		"large minimum":  {block.Adjustments{MinimumBlock: 64 << 10}, changed(func(i *block.Info) { i.MinimumBlock, i.PreferredBlock = 64<<10, 64<<10 })},
		"preferred":      {block.Adjustments{PreferredBlock: 1 << 20}, changed(func(i *block.Info) { i.PreferredBlock = 1 << 20 })},
		"payload":        {block.Adjustments{MaximumPayload: 1 << 20}, changed(func(i *block.Info) { i.MaximumPayload = 1 << 20 })},
		"rotational":     {block.Adjustments{Rotational: &on}, changed(func(i *block.Info) { i.Features |= block.Rotational })},
		"not rotational": {block.Adjustments{Rotational: &off}, &disk},
		"one connection": {block.Adjustments{MultiConn: &off}, changed(func(i *block.Info) { i.Features &^= block.CanMultiConn })},
		"multi conn":     {block.Adjustments{MultiConn: &on}, &disk},

		"minimum below the disk's":    {block.Adjustments{MinimumBlock: 256}, nil},
		"odd minimum":                 {block.Adjustments{MinimumBlock: 1536}, nil},
		"minimum above 64 KiB":        {block.Adjustments{MinimumBlock: 128 << 10}, nil},
		"preferred below the minimum": {block.Adjustments{MinimumBlock: 8192, PreferredBlock: 4096}, nil},
		"odd preferred":               {block.Adjustments{PreferredBlock: 5000}, nil},
		"preferred above the payload": {block.Adjustments{PreferredBlock: 64 << 20}, nil},
		"payload below 1 MiB":         {block.Adjustments{MaximumPayload: 1<<20 - 512}, nil},
		"payload above the disk's":    {block.Adjustments{MaximumPayload: 64 << 20}, nil},
		"payload that is no multiple": {block.Adjustments{MaximumPayload: 1<<20 + 1}, nil},
		"payload below the preferred": {block.Adjustments{PreferredBlock: 4 << 20, MaximumPayload: 2 << 20}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, device := range []block.Device{
				described{info: disk}, mapped{described{info: disk}}, fileMapped{described{info: disk}},
			} {
				got, err := block.Adjust(device, row.a)
				if row.want == nil {
					if !errors.Is(err, syscall.EINVAL) {
						t.Errorf("error %v", err)
					}
					continue
				}
				if err != nil || got.Info() != *row.want {
					t.Fatalf("%+v, %v, want %+v", got, err, *row.want)
				}
				_, was := device.(block.Mapped)
				if _, is := got.(block.Mapped); is != was {
					t.Errorf("mapped is %v", is)
				}
				_, was = device.(block.FileMapped)
				if _, is := got.(block.FileMapped); is != was {
					t.Errorf("windowed is %v", is)
				}
			}
		})
	}
	odd := disk
	odd.Size += 512
	if _, err := block.Adjust(described{info: odd}, block.Adjustments{MinimumBlock: 1024}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a size that is no multiple: %v", err)
	}
	one := disk
	one.Features = 0
	if _, err := block.Adjust(described{info: one}, block.Adjustments{MultiConn: &on}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a promise that cannot be kept: %v", err)
	}
}
