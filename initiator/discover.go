package initiator

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/carrier"
	"github.com/viablk/viablk/internal/wire"
)

// ExportInfo is an export in a target's list.
type ExportInfo struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	UUID        string `json:"uuid"`
	Size        uint64 `json:"size"`
	Default     bool   `json:"default"`
	ReadOnly    bool   `json:"read_only"`
	CanCache    bool   `json:"can_cache"`
	CanFlush    bool   `json:"can_flush"`
	CanFUA      bool   `json:"can_fua"`
	CanTrim     bool   `json:"can_trim"`
	CanZero     bool   `json:"can_zero"`
	CanFastZero bool   `json:"can_fast_zero"`
	MultiConn   bool   `json:"can_multi_conn"`
	Rotational  bool   `json:"is_rotational"`
	Target      string `json:"target"` // the target's identity
}

// maxPages bounds the pages of a list: a target cannot keep Discover busy for
// ever.
const maxPages = 4096

// Discover lists the exports of a target. It ignores Export and ReadOnly of
// cfg.
func Discover(ctx context.Context, cfg Config) (list []ExportInfo, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("list exports: %w", err)
	}
	ctx, cancel := cfg.Scheduler.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	s := &session{cfg: cfg}
	defer s.forgetKeys()
	p := &path{s: s, host: cfg.Host, epoch: firstEpoch}
	c, login, err := p.connect(ctx, wire.RoleDiscover, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("list exports of %s: %w", cfg.Host, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	err = cfg.guard("panic: the exports are not listed", func() error {
		list, err = p.askExports(ctx, c, login.TargetID)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list exports of %s: %w", cfg.Host, err)
	}
	return list, nil
}

// askExports asks for the pages of the list.
func (p *path) askExports(ctx context.Context, c *carrier.Carrier, target [16]byte) (list []ExportInfo, err error) {
	var cursor, generation uint32
	for n := range uint32(maxPages) {
		var page wire.DiscoverResponse
		err := p.ask(ctx, c, 2+n, &wire.DiscoverRequest{ID: 2 + n, PathEpoch: p.epoch, Cursor: cursor}, &page)
		if err == nil && page.Status != wire.StatusOK {
			err = page.Status.Errno()
		}
		if err != nil {
			return nil, err
		}
		if cursor != 0 && page.Generation != generation {
			cursor, list = 0, nil // the list changed: start again
			continue
		}
		generation = page.Generation
		for i := range page.Entries {
			if e := &page.Entries[i]; e.Kind == wire.EntryExport {
				list = append(list, exportInfo(e, target))
			}
		}
		if page.Next <= cursor {
			_ = p.ask(ctx, c, 1, &wire.Logout{ID: 1, PathEpoch: p.epoch}, &wire.LogoutResponse{}) // the list is complete without it
			return list, nil
		}
		cursor = page.Next
	}
	return nil, fmt.Errorf("more than %d pages", maxPages)
}

func exportInfo(e *wire.ExportEntry, target [16]byte) ExportInfo {
	f := block.Features(e.Features)
	if f&block.ReadOnly != 0 {
		f &^= block.CanTrim | block.CanWriteZeroes
	}
	if f&block.CanWriteZeroes == 0 {
		f &^= block.CanFastZero
	}
	return ExportInfo{
		Name: e.Name, Description: e.Description, UUID: block.FormatUUID(e.UUID), Size: e.Size, Default: e.Default,
		ReadOnly: f&block.ReadOnly != 0, CanCache: f&block.CanPrefetch != 0, CanFlush: f&block.CanFlush != 0, CanFUA: f&block.CanFUA != 0,
		CanTrim: f&block.CanTrim != 0, CanZero: f&block.CanWriteZeroes != 0, CanFastZero: f&block.CanFastZero != 0,
		MultiConn: f&block.CanMultiConn != 0, Rotational: f&block.Rotational != 0,
		Target: hex.EncodeToString(target[:]),
	}
}
