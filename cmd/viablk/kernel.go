package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/nbdkernel"
)

// kernelDevice is the block device of the kernel that a remote disk becomes. A
// nil one is none.
type kernelDevice struct {
	settings   config.Attach
	backend    string // what the kernel is told that the device is connected to
	driver     *nbdkernel.Driver
	reserved   *nbdkernel.Reservation
	attachment *nbdkernel.Attachment // once it is attached
}

// deviceStatus is a device of the kernel as its process sees it.
type deviceStatus struct {
	Path        string `json:"path"`
	Backend     string `json:"backend"`
	Connections int    `json:"connections"` // of the kernel, now
	Replaced    uint64 `json:"replaced"`    // connections that the kernel gave up
}

// Limits of the kernel's nbd driver.
const (
	leastKernelBlock = 512
	mostKernelBlock  = 4096
	kernelRequest    = 32 << 20 // its longest request
)

// openKernelDevice looks whether the configuration asks for a device, and
// whether the kernel can have one. It returns nil if it asks for none. The
// caller closes it.
func openKernelDevice(c config.Attach, u config.URI) (*kernelDevice, error) {
	if c.Device == "" {
		return nil, nil
	}
	k := &kernelDevice{settings: c, backend: u.Peer().String()}
	index := nbdkernel.AnyIndex
	if c.Device != config.DeviceAuto {
		n, err := nbdkernel.ParseNode(c.Device)
		if err != nil {
			return nil, usage("--device: %w", err)
		}
		index = int(n)
	}
	var err error
	if k.driver, err = nbdkernel.OpenDriver(); err != nil {
		return nil, err
	}
	if k.reserved, err = nbdkernel.Reserve(index, k.backend, c.Reattach); err != nil {
		k.driver.Close()
		return nil, err
	}
	return k, nil
}

// close releases what openKernelDevice took. The device is not served any more.
func (k *kernelDevice) close() {
	if k != nil {
		k.reserved.Release()
		k.driver.Close()
	}
}

// addTo adds the device, before it is attached, to the places of an attach.
func (k *kernelDevice) addTo(p lifePlaces) lifePlaces {
	if k == nil {
		return p
	}
	p.folder, p.waits = nbdkernel.Folder, k.reserved.Reattaching()
	if n, known := k.reserved.Node(); known {
		p.device = lifePath(p.folder, n.String())
	}
	return p
}

// lifePath returns the file of the device's life, once it is attached.
func (k *kernelDevice) lifePath() string {
	return lifePath(nbdkernel.Folder, k.attachment.Node().String())
}

// attach makes the device of a remote disk that is an export of the server.
func (k *kernelDevice) attach(ctx context.Context, server *nbd.Server, d attached, log *slog.Logger) error {
	export, err := server.Exports.Export(d.Name)
	if err != nil {
		return err
	}
	flags, info := server.Describe(export)
	size, err := k.blockSize(info)
	if err != nil {
		return &exit{exitUsage, fmt.Errorf("--device: %w", err)}
	}
	k.attachment, err = nbdkernel.Attach(ctx, nbdkernel.Config{
		Settings: nbdkernel.Settings{
			Size: info.Size, BlockSize: size, Flags: flags,
			IOTimeout: k.settings.IOTimeout, DeadTimeout: k.settings.CtrlLossTimeout,
		},
		Driver: k.driver, Device: k.reserved, Connections: k.settings.Connections,
		Serve: func(ctx context.Context, c net.Conn, ready func()) error {
			return server.ServeConn(ctx, c, export, ready)
		},
		Present: func() (size int64, answers bool) {
			_, info := server.Describe(export)
			return info.Size, d.remote.device.Status().Connected
		},
		Log: log,
	})
	return err
}

// blockSize returns the logical block of the device, or why the disk cannot be
// one.
func (k *kernelDevice) blockSize(i block.Info) (int, error) {
	size := max(int(i.MinimumBlock), leastKernelBlock)
	switch {
	case size > mostKernelBlock:
		return 0, fmt.Errorf("the disk has blocks of %v, and the kernel takes %d bytes at most", config.Size(size), mostKernelBlock)
	case i.Size == 0 || i.Size%int64(size) != 0:
		return 0, fmt.Errorf("the disk has %d bytes, which are no number of blocks of %d", i.Size, size)
	case i.MaximumPayload < kernelRequest:
		return 0, fmt.Errorf("the disk takes requests of %v, and the kernel sends %v: leave out --maximum-payload", config.Size(i.MaximumPayload), config.Size(kernelRequest))
	case k.settings.Connections > 1 && i.Features&block.CanMultiConn == 0:
		return 0, errors.New("the disk does not keep its promises over several connections: leave out --connections")
	}
	return size, nil
}

// parts serves the device.
func (k *kernelDevice) parts() []part {
	if k == nil {
		return nil
	}
	return []part{{
		name:  k.attachment.Node().String(),
		serve: k.attachment.Serve,
		drain: k.attachment.End,
	}}
}

// status returns the state of the device, nil if there is none.
func (k *kernelDevice) status() *deviceStatus {
	if k == nil {
		return nil
	}
	return &deviceStatus{
		Path: k.attachment.Node().String(), Backend: k.backend,
		Connections: k.attachment.Connections(), Replaced: k.attachment.Replaced(),
	}
}

// abandon detaches a device before its name is printed.
func (k *kernelDevice) abandon() error {
	if k == nil || k.attachment == nil {
		return nil
	}
	return k.driver.Disconnect(k.attachment.Node())
}
