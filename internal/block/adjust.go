package block

import (
	"fmt"
	"syscall"
)

// Adjustments override parts of the description of a disk. The zero value
// changes nothing.
type Adjustments struct {
	MinimumBlock   uint32 // bytes, at least the disk's
	PreferredBlock uint32 // bytes
	MaximumPayload uint32 // bytes, at most the disk's
	Rotational     *bool
	MultiConn      *bool // true only for a disk that supports it
}

// apply returns the description with the adjustments applied, or an error with
// errno EINVAL.
func (a Adjustments) apply(i Info) (Info, error) {
	refuse := func(format string, args ...any) (Info, error) {
		return i, fmt.Errorf(format+": %w", append(args, syscall.EINVAL)...)
	}
	powerOfTwo := func(n uint32) bool { return n&(n-1) == 0 }
	switch {
	case a.MinimumBlock != 0 && (a.MinimumBlock < i.MinimumBlock || a.MinimumBlock > 64<<10 || !powerOfTwo(a.MinimumBlock)):
		return refuse("minimum block %d is not a power of two from %d to 65536", a.MinimumBlock, i.MinimumBlock)
	case a.MinimumBlock != 0 && i.Size%int64(a.MinimumBlock) != 0:
		return refuse("the size %d is not a multiple of the minimum block %d", i.Size, a.MinimumBlock)
	}
	i.MinimumBlock = max(i.MinimumBlock, a.MinimumBlock)
	least := max(i.MinimumBlock, 512)
	switch {
	case a.PreferredBlock != 0 && (a.PreferredBlock < least || a.PreferredBlock > i.MaximumPayload || !powerOfTwo(a.PreferredBlock)):
		return refuse("preferred block %d is not a power of two from %d to %d", a.PreferredBlock, least, i.MaximumPayload)
	case a.PreferredBlock != 0:
		i.PreferredBlock = a.PreferredBlock
	}
	i.PreferredBlock = max(i.PreferredBlock, i.MinimumBlock)
	low := max(1<<20, i.PreferredBlock)
	switch {
	case a.MaximumPayload != 0 && (a.MaximumPayload < low || a.MaximumPayload > i.MaximumPayload || a.MaximumPayload%i.MinimumBlock != 0):
		return refuse("maximum payload %d is not a multiple of the minimum block from %d to %d", a.MaximumPayload, low, i.MaximumPayload)
	case a.MaximumPayload != 0:
		i.MaximumPayload = a.MaximumPayload
	}
	if a.MultiConn != nil && *a.MultiConn && i.Features&CanMultiConn == 0 {
		return refuse("a flush of this disk does not cover other connections")
	}
	i.Features = i.Features.with(CanMultiConn, a.MultiConn).with(Rotational, a.Rotational)
	return i, nil
}

// with returns f with a feature set or cleared; nil leaves it as it is.
func (f Features) with(feature Features, on *bool) Features {
	switch {
	case on == nil:
		return f
	case *on:
		return f | feature
	default:
		return f &^ feature
	}
}

// Adjust returns device with another description. Closing it closes device. The
// error has errno EINVAL.
func Adjust(device Device, a Adjustments) (Device, error) {
	if a == (Adjustments{}) {
		return device, nil
	}
	info, err := a.apply(device.Info())
	if err != nil {
		return nil, err
	}
	switch d := device.(type) {
	case Mapped:
		return &adjustedMapped{d, info}, nil
	case FileMapped:
		return &adjustedFileMapped{d, info}, nil
	}
	return &adjusted{device, info}, nil
}

// adjusted is a device with another description. Nothing else changes, so what
// is under it may be used directly where it is memory, or mapped.
type adjusted struct {
	Device
	info Info
}

func (d *adjusted) Info() Info             { return d.info.resized(d.Device.Info().Size) }
func (d *adjusted) Durability() Durability { return DurabilityOf(d.Device) }
func (d *adjusted) Identity() Identity     { return IdentityOf(d.Device) }

// resized returns i with another size, as far as that is whole blocks.
func (i Info) resized(size int64) Info {
	i.Size = size &^ (int64(max(i.MinimumBlock, 1)) - 1)
	return i
}

type adjustedMapped struct {
	Mapped
	info Info
}

func (d *adjustedMapped) Info() Info             { return d.info.resized(d.Mapped.Info().Size) }
func (d *adjustedMapped) Durability() Durability { return DurabilityOf(d.Mapped) }
func (d *adjustedMapped) Identity() Identity     { return IdentityOf(d.Mapped) }

type adjustedFileMapped struct {
	FileMapped
	info Info
}

func (d *adjustedFileMapped) Info() Info             { return d.info.resized(d.FileMapped.Info().Size) }
func (d *adjustedFileMapped) Durability() Durability { return DurabilityOf(d.FileMapped) }
func (d *adjustedFileMapped) Identity() Identity     { return IdentityOf(d.FileMapped) }
