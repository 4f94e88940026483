package joint

import (
	"errors"
	"fmt"
	"strings"

	"github.com/viablk/viablk/via"
)

// Part is a device of a provider that is part of a NIC.
type Part struct {
	Name     string // before the colon of hosts; not empty, without a colon
	Provider via.Provider
	Device   string // of the provider; "" is its default
}

// ErrCannotJoin is why a provider cannot be a part.
var ErrCannotJoin = errors.New("cannot share a NIC with other providers")

// New returns the provider of NICs with these parts, two at least, whose names
// differ.
func New(parts ...Part) (via.Provider, error) {
	names := make(map[string]bool)
	for _, p := range parts {
		if p.Name == "" || strings.Contains(p.Name, ":") || names[p.Name] {
			return nil, fmt.Errorf("part %q: its name is empty, has a colon, or is that of another part", p.Name)
		}
		names[p.Name] = true
	}
	if len(parts) < 2 {
		return nil, errors.New("fewer than two parts")
	}
	return provider(parts), nil
}

// Host returns the host of a NIC for that of a part.
func Host(part, host string) string { return part + ":" + host }

type provider []Part

// Name returns the names of the parts with a + between them.
func (p provider) Name() string {
	var names []string
	for _, part := range p {
		names = append(names, part.Name)
	}
	return strings.Join(names, "+")
}

// Open opens the devices of all parts. Its only name is "".
func (p provider) Open(device string) (via.Adapter, error) {
	if device != "" {
		return nil, fmt.Errorf("no such device: %w", via.ErrInvalidParameter)
	}
	a := &adapter{}
	for _, part := range p {
		inner, err := part.Provider.Open(part.Device)
		if err == nil {
			a.parts = append(a.parts, member{part.Name, inner})
			err = a.accept(inner)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s device %q: %w", part.Name, part.Device, err), a.Close())
		}
	}
	a.limits = a.strictest()
	if a.limits.ReliabilityLevels == 0 {
		return nil, errors.Join(fmt.Errorf("no reliability level that all parts have: %w", via.ErrResource), a.Close())
	}
	a.names.limit = a.limits.MaxRegisterRegions
	return a, nil
}

// accept checks the device that was added to the parts last.
func (a *adapter) accept(inner via.Adapter) error {
	j, ok := inner.(via.Joinable)
	switch {
	case !ok:
		return ErrCannotJoin
	case !j.PrivateArenas():
		return nil
	case a.mapper != nil:
		return fmt.Errorf("%w that map memory themselves", ErrCannotJoin)
	}
	a.mapper = inner
	return nil
}

// strictest returns what all parts can do.
func (a *adapter) strictest() via.Limits {
	l := a.parts[0].Limits()
	for _, p := range a.parts[1:] {
		x := p.Limits()
		l.MaxDiscriminatorLen = min(l.MaxDiscriminatorLen, x.MaxDiscriminatorLen)
		l.MaxRegisterBytes = min(l.MaxRegisterBytes, x.MaxRegisterBytes)
		l.MaxRegisterRegions = min(l.MaxRegisterRegions, x.MaxRegisterRegions)
		l.MaxRegisterBlockBytes = min(l.MaxRegisterBlockBytes, x.MaxRegisterBlockBytes)
		l.MaxVI = min(l.MaxVI, x.MaxVI)
		l.MaxDescriptorsPerQueue = min(l.MaxDescriptorsPerQueue, x.MaxDescriptorsPerQueue)
		l.MaxSegmentsPerDesc = min(l.MaxSegmentsPerDesc, x.MaxSegmentsPerDesc)
		l.MaxCQ = min(l.MaxCQ, x.MaxCQ)
		l.MaxCQEntries = min(l.MaxCQEntries, x.MaxCQEntries)
		l.MaxTransferSize = min(l.MaxTransferSize, x.MaxTransferSize)
		l.NativeMTU = min(l.NativeMTU, x.NativeMTU)
		l.MaxPtags = min(l.MaxPtags, x.MaxPtags)
		l.ReliabilityLevels &= x.ReliabilityLevels
		l.RdmaReadLevels &= x.RdmaReadLevels
		l.PostsCopy = l.PostsCopy && x.PostsCopy
		l.PinsMemory = l.PinsMemory || x.PinsMemory
	}
	l.MaxRegisterRegions = min(l.MaxRegisterRegions, maxNames)
	l.NamesRegions = true // for all parts, see names
	return l
}
