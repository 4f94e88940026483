package backend

import (
	"errors"
	"fmt"
	"strings"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/backend/rbd"
)

// parseRBD reads `rbd:POOL/IMAGE[@SNAPSHOT][?OPTION=VALUE&…]`, an image in a
// Ceph cluster.
//
//	readonly=1      refuse writes, and take no lock
//	user=NAME       the client of the cluster, admin by default
//	conf=PATH       the configuration of the cluster
//	namespace=NAME  of the pool
//	steal=1         take the image from the client that has its lock
func parseRBD(rest string) (Opener, error) {
	cfg, err := parseImage(rest)
	if err != nil {
		return nil, err
	}
	if !rbd.Built {
		return nil, &sameError{rbd.ErrNotBuilt, ErrUsage}
	}
	return func(options Options) (block.Device, error) { return openImage(cfg, options) }, nil
}

// openImage opens an image.
func openImage(cfg rbd.Config, options Options) (block.Device, error) {
	cfg.ReadOnly, cfg.Log = cfg.ReadOnly || options.ReadOnly, options.Log
	device, err := rbd.Open(cfg)
	switch {
	case errors.Is(err, rbd.ErrInUse):
		return nil, &sameError{err, ErrLocked}
	case errors.Is(err, rbd.ErrUnsuitable):
		return nil, &sameError{err, ErrUsage}
	}
	return device, err
}

// parseImage reads the specification of an image.
func parseImage(rest string) (cfg rbd.Config, err error) {
	body, query, err := splitQuery("rbd", rest)
	if err != nil {
		return cfg, err
	}
	var image, snapshot string
	cfg.Pool, image, _ = strings.Cut(body, "/")
	cfg.Image, snapshot, _ = strings.Cut(image, "@")
	cfg.Snapshot = snapshot
	cfg.User, cfg.Conf, cfg.Namespace = query.values.Get("user"), query.values.Get("conf"), query.values.Get("namespace")
	switch {
	case cfg.Pool == "" || cfg.Image == "" || strings.ContainsAny(cfg.Image+snapshot, "/@") || strings.HasSuffix(image, "@"):
		return cfg, fmt.Errorf("%w: rbd:%s names no image: write rbd:POOL/IMAGE, or rbd:POOL/IMAGE@SNAPSHOT", ErrUsage, body)
	case strings.ContainsRune(rest, 0) || strings.Contains(cfg.Pool+cfg.Image+snapshot+cfg.User+cfg.Conf+cfg.Namespace, "\x00"):
		return cfg, fmt.Errorf("%w: a name of rbd: has a zero byte", ErrUsage)
	case strings.HasPrefix(cfg.User, "client."):
		return cfg, fmt.Errorf("%w: option user of rbd: is %q: leave client. out", ErrUsage, cfg.User)
	}
	if cfg.ReadOnly, err = query.flag("readonly"); err != nil {
		return cfg, err
	}
	if cfg.Steal, err = query.flag("steal"); err != nil {
		return cfg, err
	}
	if cfg.Steal && (cfg.ReadOnly || snapshot != "") {
		return cfg, fmt.Errorf("%w: rbd:%s is read-only, so there is no lock for steal=1 to take", ErrUsage, body)
	}
	return cfg, nil
}

// sameError is an error of another package that means one of this.
type sameError struct {
	error
	is error
}

func (e *sameError) Is(target error) bool { return target == e.is }

func (e *sameError) Unwrap() error { return e.error }
