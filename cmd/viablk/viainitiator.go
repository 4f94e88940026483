package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/regcache"
	"github.com/viablk/viablk/via"
)

// remoteDevice is a remote disk, over VIA or NBD.
type remoteDevice interface {
	block.Device

	Description() string
	Status() initiator.Status

	// Done is closed when the disk is lost for good, and Err says why. A disk
	// that logs that itself has no channel.
	Done() <-chan struct{}
	Err() error

	// CheckCertificates is called after certificates were read anew.
	CheckCertificates()
}

// remoteDisk is an open remote disk with the NIC that reaches it.
type remoteDisk struct {
	uri    config.URI
	reach  *reach // of a disk over VIA; else nil
	device remoteDevice
	close  func() error // closes disk and NIC, once
}

// dialVIA is dialRemote for a VIA URI.
func dialVIA(ctx context.Context, u config.URI, c config.Attach, life *lifeFiles, log *slog.Logger, trace *tracer) (*remoteDisk, error) {
	security, err := sealed(u, nil)
	if err != nil {
		return nil, err
	}
	paths, err := c.RemotePaths()
	if err != nil {
		return nil, err
	}
	r := newReach(u, paths)
	nic, err := r.open(log, trace)
	if err != nil {
		return nil, err
	}
	device, err := initiator.Dial(ctx, initiator.Config{
		NIC:       nic,
		Host:      r.list[0],
		Export:    u.Export,
		ReadOnly:  c.ReadOnly,
		Exclusive: c.Exclusive,
		Preempt:   c.Preempt,
		Depth:     c.Depth,
		InlineMax: int(c.InlineMax),
		MaxIO:     int(c.MaxIO),
		CopyMode:  regcache.CopyMode(c.CopyMode),
		Timeout:   c.Timeout,
		Log:       log,
		Security:  security,
		Digest:    c.DataDigest,

		LossTimeout:    c.CtrlLossTimeout,
		ReconnectDelay: c.ReconnectDelay,
		OnConflict:     initiator.ConflictPolicy(c.OnConflict),
		OtherHosts:     r.list[1:],
		PathPolicy:     initiator.PathPolicy(c.PathPolicy),
		Continues:      life.continues(),
		KeepLife:       life.recorder(),
	})
	if err != nil {
		return nil, errors.Join(refusal(about("attach", u, err)), nic.Close())
	}
	return &remoteDisk{u, r, device, sync.OnceValue(func() error {
		if err := errors.Join(device.Close(), nic.Close()); err != nil {
			return fmt.Errorf("close %s: %w", u, err)
		}
		return nil
	})}, nil
}

// refusal adds to the failure to open a disk whether trying again helps. An
// errno is the target's answer, and not that it is away.
func refusal(err error) error {
	var security *initiator.SecurityError
	if errors.As(err, &security) {
		return &exit{exitPermission, err}
	}
	if errors.Is(err, via.ErrNotReachable) || errors.Is(err, via.ErrNoMatch) ||
		errors.Is(err, via.ErrTimeout) || errors.Is(err, via.ErrReject) || errors.Is(err, context.DeadlineExceeded) {
		return unreachable(err)
	}
	return err
}

// part keeps the disk: when it is lost for good it stays and answers every
// request with EIO, so that its users see errors and not the end of their
// device.
func (r *remoteDisk) part(log *slog.Logger) part {
	return part{
		name: r.uri.String(),
		serve: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-r.device.Done():
			}
			if err := r.device.Err(); err != nil { // nil: closed by us
				log.Error("the disk is lost: requests fail with EIO until this process is started again", "event", "disk_failed", "uri", r.uri.String(), "error", err)
			}
			return nil
		},
		drain: func(context.Context) error { return r.close() },
	}
}

// discoverVIA lists the exports of the target behind a VIA URI.
func discoverVIA(ctx context.Context, u config.URI) (d described, err error) {
	var state *tls.ConnectionState
	security, err := sealed(u, func(s tls.ConnectionState) { state = &s })
	if err != nil {
		return d, err
	}
	nic, err := openNIC(u, slog.New(slog.DiscardHandler), nil, "")
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	c := initiator.Config{NIC: nic, Host: hostOf(u), Security: security}
	if deadline, ok := ctx.Deadline(); ok {
		c.Timeout = time.Until(deadline)
	}
	list, err := initiator.Discover(ctx, c)
	if err != nil {
		return d, refusal(err)
	}
	if state != nil {
		d.security = newSecurityReport(state)
	}
	d.network, d.uuids = networkReports(), make(map[string]string)
	for _, x := range list {
		d.target, d.uuids[x.Name] = x.Target, x.UUID
		d.infos = append(d.infos, nbd.ExportInfo{
			Name: x.Name, Description: x.Description, Size: int64(x.Size),
			ReadOnly: x.ReadOnly, Rotational: x.Rotational, CanFlush: x.CanFlush, CanFUA: x.CanFUA,
			CanCache: x.CanCache, CanDF: true, // a read has one answer
			CanTrim: x.CanTrim, CanZero: x.CanZero, CanFastZero: x.CanFastZero, CanMultiConn: x.MultiConn,
		})
	}
	return d, nil
}
