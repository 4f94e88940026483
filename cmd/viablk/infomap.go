package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
)

// mappedExtent is an extent of a disk, with the names of nbdinfo.
type mappedExtent struct {
	Offset      int64  `json:"offset"`
	Length      int64  `json:"length"`
	Type        uint32 `json:"type"` // of base:allocation in NBD
	Description string `json:"description"`
}

// mappedTotal is all extents of a type, with the names of nbdinfo.
type mappedTotal struct {
	Size        int64   `json:"size"`
	Percent     float64 `json:"percent"`
	Type        uint32  `json:"type"`
	Description string  `json:"description"`
}

// extentTypes are the types of base:allocation, whose bits are those of
// [block.ExtentFlags], with what nbdinfo calls them.
var extentTypes = [...]string{0: "data", block.Hole: "hole", block.Zero: "zero", block.Hole | block.Zero: "hole,zero"}

// printMap prints the extents of the disk that a VIA URI names, or their sums.
func (a *app) printMap(ctx context.Context, query *queryOptions, uri string, totals bool) error {
	u, err := query.parse(uri)
	if err != nil {
		return err
	}
	if !u.VIA() {
		return usage("--map is for VIA: of an NBD server ask nbdinfo --map")
	}
	if totals {
		sums := make(map[uint32]int64)
		size, err := visitExtents(ctx, query.timeout, u, func(e mappedExtent) error {
			sums[e.Type] += e.Length
			return nil
		})
		if err != nil {
			return err
		}
		return a.printTotals(sums, size)
	}
	p := extentPrinter{out: a.stdout, json: a.output == "json"}
	_, err = visitExtents(ctx, query.timeout, u, p.print)
	return errors.Join(err, p.end())
}

// visitExtents opens the disk that a VIA URI names for reading, and calls visit
// with its extents. It returns the size of the disk. The timeout is that of
// each request.
func visitExtents(ctx context.Context, timeout time.Duration, u config.URI, visit func(mappedExtent) error) (size int64, err error) {
	security, err := sealed(u, nil)
	if err != nil {
		return 0, err
	}
	nic, err := openNIC(u, slog.New(slog.DiscardHandler), nil, "")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, nic.Close()) }()
	d, err := initiator.Dial(ctx, initiator.Config{
		NIC: nic, Host: hostOf(u), Export: u.Export, ReadOnly: true, Timeout: timeout, Security: security,
	})
	if err != nil {
		return 0, refusal(about("map", u, err))
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	size = d.Size()
	if size > 0 && d.Info().Features&block.CanStatus == 0 {
		return 0, fmt.Errorf("map %s: the disk cannot tell its extents", u)
	}
	err = d.Extents(0, size, func(off int64, e block.Extent) error {
		t := uint32(e.Flags & block.KnownExtentFlags)
		return visit(mappedExtent{Offset: off, Length: e.Length, Type: t, Description: extentTypes[t]})
	})
	return size, err
}

// extentPrinter prints extents as they come: a disk may have millions.
type extentPrinter struct {
	out  io.Writer
	json bool
	n    int
}

func (p *extentPrinter) print(e mappedExtent) error {
	format := "%10d  %10d  %3d  %s\n"
	if p.json {
		format = ",\n{ \"offset\": %d, \"length\": %d, \"type\": %d, \"description\": %q}"
		if p.n == 0 {
			format = "[" + format[1:]
		}
	}
	p.n++
	if _, err := fmt.Fprintf(p.out, format, e.Offset, e.Length, e.Type, e.Description); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// end ends the document.
func (p *extentPrinter) end() error {
	text := "\n]\n"
	switch {
	case !p.json:
		return nil
	case p.n == 0:
		text = "[]\n"
	}
	if _, err := io.WriteString(p.out, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// printTotals prints the bytes of each type of a disk of a size.
func (a *app) printTotals(sums map[uint32]int64, size int64) error {
	list := []mappedTotal{}
	for _, t := range slices.Sorted(maps.Keys(sums)) {
		list = append(list, mappedTotal{sums[t], 100 * float64(sums[t]) / float64(size), t, extentTypes[t]})
	}
	if a.output == "json" {
		return a.printJSON(list)
	}
	for _, t := range list {
		if _, err := fmt.Fprintf(a.stdout, "%10d %5.1f%% %3d %s\n", t.Size, t.Percent, t.Type, t.Description); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}
