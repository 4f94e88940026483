package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// can are the capabilities that --can asks for, with the words of nbdinfo.
var can = map[string]func(export) bool{
	"connect":    func(export) bool { return true },
	"read":       func(export) bool { return true },
	"write":      func(e export) bool { return !e.ReadOnly },
	"cache":      func(e export) bool { return e.CanCache },
	"df":         func(e export) bool { return e.CanDF },
	"fast-zero":  func(e export) bool { return e.CanFastZero },
	"flush":      func(e export) bool { return e.CanFlush },
	"fua":        func(e export) bool { return e.CanFUA },
	"multi-conn": func(e export) bool { return e.CanMultiConn },
	"trim":       func(e export) bool { return e.CanTrim },
	"zero":       func(e export) bool { return e.CanZero },
}

// is are the properties that --is asks for.
var is = map[string]func(export) bool{
	"read-only":  func(e export) bool { return e.ReadOnly },
	"rotational": func(e export) bool { return e.Rotational },
	"tls":        func(e export) bool { return e.tls },
}

// infoOptions are what "viablk info" is asked for; at most one is set.
type infoOptions struct {
	size, extents bool
	costs         bool // of copies
	totals        bool // with extents
	can, is       string
}

// questions counts what is set.
func (o infoOptions) questions() int {
	n := 0
	for _, set := range []bool{o.size, o.extents, o.costs, o.can != "", o.is != ""} {
		if set {
			n++
		}
	}
	return n
}

func (a *app) infoCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "info URI",
		Short: "Describe an export",
		Long: `Describe the export that a VIA or NBD URI names. Over VIA that includes what the
processes here that have the export attached did: over RoCE each of their connections
with its path MTU, round trip and retransmitted packets. With -o json that is all
counters of the processes here that serve the export or have it attached, and what
--copy measures.

If a process of this user serves the export here, that includes who has it open, and
the reservation: with "write exclusive" other clients may only read, with "exclusive
access" they may not open it. "uuid kept" says whether the UUID outlives the process.

--can and --is print nothing: the exit code is 0 if it is so and 2 if not.

--map prints what a disk behind a VIA URI consists of, as nbdinfo does: offset,
length, type, and data, hole, zero or both. --totals prints sums of each type. It
opens the export for reading. Over NBD, use nbdinfo.

--copy prints what a copy and a registration cost on this machine over VIA, from which
size on memory of callers moves without a copy (zero-copy), if its registration is
cached and at its first use, and what became of reads of a mapped file.`,
		Example: `  viablk info via+roce://storage/disk0
  viablk info --size nbd://localhost/disk0
  viablk info --map --totals via+shm:///disk0
  viablk info --can trim nbd://localhost/disk0 && fstrim …`,
	}
	var options infoOptions
	query := addQueryOptions(cmd)
	cmd.Flags().BoolVar(&options.size, "size", false, "print the size in bytes alone")
	cmd.Flags().BoolVar(&options.extents, "map", false, "print the extents of a disk over VIA")
	cmd.Flags().BoolVar(&options.totals, "totals", false, "with --map: print the sums of each type")
	cmd.Flags().BoolVar(&options.costs, "copy", false, "print what copies and registrations cost over VIA")
	cmd.Flags().StringVar(&options.can, "can", "", "ask whether the export can do `WHAT`: "+alternatives(slices.Sorted(maps.Keys(can))))
	cmd.Flags().StringVar(&options.is, "is", "", "ask whether the export is `WHAT`: "+alternatives(slices.Sorted(maps.Keys(is))))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if options.questions() > 1 {
			return usage("--size, --map, --copy, --can and --is ask for different things: give one of them")
		}
		if options.totals && !options.extents {
			return usage("--totals is for --map: give both")
		}
		if _, ok := can[options.can]; !ok && cmd.Flags().Changed("can") {
			return usage("--can %q: ask for one of %s", options.can, words(can))
		}
		if _, ok := is[options.is]; !ok && cmd.Flags().Changed("is") {
			return usage("--is %q: ask for one of %s", options.is, words(is))
		}
		if options.extents {
			return a.printMap(cmd.Context(), query, args[0], options.totals)
		}
		if u, err := config.ParseURI(args[0]); options.costs && err == nil && !u.VIA() {
			return usage("--copy is for exports over VIA: NBD clients copy")
		}
		report, err := query.query(cmd.Context(), args[0], infoExport)
		if err != nil {
			return err
		}
		if options.questions() == 0 || options.costs {
			// An error means that no process here serves it or has it attached.
			processes, _ := findStatus(cmd.Context(), config.Default())
			report.Served = servedDisks(processes, report.Target, report.Exports[0])
			if report.Copy, err = newCopyReport(processes, report.Target, report.Exports[0], options.costs || a.output == "json"); err != nil {
				return err
			}
		}
		return a.printInfo(report, options)
	}
	return cmd
}

// words lists what may be asked for.
func words(m map[string]func(export) bool) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// infoExport asks for the export that u names.
func infoExport(ctx context.Context, u config.URI) (described, error) {
	if !u.VIA() {
		c, client, err := dialNBD(ctx, u)
		if err != nil {
			return described{}, err
		}
		i, err := client.Info(ctx, c, u.Export)
		if err != nil {
			err = withNearExports(ctx, u, err)
		}
		return described{infos: []nbd.ExportInfo{i}}, err
	}
	d, err := discoverVIA(ctx, u)
	if err != nil {
		return d, err
	}
	for _, i := range d.infos {
		if i.Name == u.Export {
			d.infos = []nbd.ExportInfo{i}
			return d, nil
		}
	}
	return d, fmt.Errorf("the target has no export %q%s", u.Export, nearExports(u.Export, d.infos))
}

// printInfo prints the only export of the report, or answers the question.
func (a *app) printInfo(report exportReport, options infoOptions) error {
	e := report.Exports[0]
	answer := true
	switch {
	case options.can != "":
		answer = can[options.can](e)
	case options.is != "":
		answer = is[options.is](e)
	case options.size:
		if _, err := fmt.Fprintln(a.stdout, e.Size); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	case a.output == "json":
		return a.printJSON(report)
	case options.costs:
		return a.printTable(report.Copy.rows())
	default:
		rows := append(infoRows(report.Protocol, e), identityRows(e, report.Served)...)
		rows = append(rows, []string{"security", report.securityText()})
		rows = append(rows, report.Copy.attachedRows()...)
		return a.printTable(append(rows, networkRows(report.Network)...))
	}
	if !answer {
		return &exit{code: exitFalse}
	}
	return nil
}

// securityText describes what protects the session, or the connection.
func (r *exportReport) securityText() string {
	switch s := r.Security; {
	case s != nil:
		return securityText(s.Cipher, s.Agreement, s.Peer, s.Expires, 0)
	case r.TLS:
		return "TLS"
	}
	return "none"
}

// infoRows describes an export line by line.
func infoRows(protocol string, e export) [][]string {
	rows := [][]string{
		{"uri", e.URI},
		{"protocol", protocol},
		{"transport", e.Transport},
		{"export-size", fmt.Sprintf("%d (%s)", e.Size, e.SizeText)},
	}
	if e.Description != "" {
		rows = append(rows, []string{"description", e.Description})
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		rows = append(rows, []string{"is " + name, strconv.FormatBool(is[name](e))})
	}
	for _, name := range slices.Sorted(maps.Keys(can)) {
		rows = append(rows, []string{"can " + name, strconv.FormatBool(can[name](e))})
	}
	for _, b := range []struct {
		name string
		size uint32
	}{{"minimum", e.BlockMinimum}, {"preferred", e.BlockPreferred}, {"maximum", e.BlockMaximum}} {
		if b.size > 0 {
			rows = append(rows, []string{"block size " + b.name, strconv.FormatUint(uint64(b.size), 10)})
		}
	}
	return rows
}
