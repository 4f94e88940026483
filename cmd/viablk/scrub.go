package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/backend"
)

func (a *app) scrubCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scrub [EXPORT]",
		Short: "Check all blocks of a disk with checksums",
		Long: `Have the running target read each block of a disk crc:DISK,SUMS that has a checksum, and
compare them, beside its clients. EXPORT may be left out if one export has checksums.

The scrub belongs to the target. It goes on if the command ends, and stops at the end of
the disk, by --stop, when the export is removed, and when the target drains, ends or is
taken over; the next one begins from the start. "viablk status" shows it.

The command waits for the end. The exit code is 2 if blocks are not what was written or
cannot be read, whose number, and the offsets of the first 100, are printed, and if
checksums of a region cannot be used. It is 1 if the scrub was stopped before, and 75
if another one runs.`,
		Example: `  viablk scrub disk0
  viablk scrub disk0 --rate 500MiB --background
  viablk scrub disk0 --stop`,
	}
	options := addOptions(cmd, adminOption)
	var rate config.Size
	cmd.Flags().TextVar(&rate, "rate", scrubRate, "`SIZE` per second to read at most; 0: unlimited")
	background := cmd.Flags().Bool("background", false, "do not wait for the end")
	stop := cmd.Flags().Bool("stop", false, "stop the scrub that runs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *stop && (*background || cmd.Flags().Changed("rate")) {
			return usage("--stop starts no scrub: leave --rate and --background out")
		}
		p, err := a.runningTarget(cmd.Context(), options)
		if err != nil {
			return err
		}
		name, err := p.scrubbed(args)
		if err != nil {
			return err
		}
		c := scrubCaller{p.socket, name}
		if *stop {
			return c.call(cmd.Context(), adminCall{method: http.MethodDelete, timeout: changeTime})
		}
		r, err := c.start(cmd.Context(), rate)
		if err != nil {
			return err
		}
		if !*background {
			if r, err = a.awaitScrub(cmd.Context(), c, r); err != nil {
				return err
			}
		}
		return a.printScrub(r, *background)
	}
	return cmd
}

// scrubbed returns the export that the arguments name, or the only one that has
// checksums.
func (p *processStatus) scrubbed(args []string) (name string, err error) {
	if len(args) == 1 {
		return args[0], nil
	}
	var names []string
	for _, d := range p.Disks {
		if d.Scrub != nil {
			names = append(names, d.Name)
		}
	}
	switch len(names) {
	case 1:
		return names[0], nil
	case 0:
		return "", &exit{exitConfiguration, errors.New("no export has checksums: export a disk as crc:DISK,SUMS")}
	}
	return "", usage("%d exports have checksums: name one of %s", len(names), strings.Join(names, ", "))
}

// scrubCaller calls a target about the scrubs of an export.
type scrubCaller struct{ socket, export string }

// call makes a call. An export that is not there is a mistake of the command
// line: its exit code in other commands is that of corrupt blocks here.
func (c scrubCaller) call(ctx context.Context, call adminCall) error {
	call.route = "/v1/scrubs?name=" + url.QueryEscape(c.export)
	err := askAdmin(ctx, c.socket, call)
	var answer *answerCode
	if errors.As(err, &answer) && answer.code == http.StatusNotFound {
		return usage("there is no export %q; viablk export ls lists them", c.export)
	}
	return err
}

// readTo returns a call that reads the answer into r.
func (r *scrubReport) readTo(call adminCall) adminCall {
	call.read = func(_ net.Conn, body *json.Decoder) error { return body.Decode(r) }
	return call
}

// start starts a scrub.
func (c scrubCaller) start(ctx context.Context, rate config.Size) (r scrubReport, err error) {
	body, err := json.Marshal(scrubCall{rate})
	if err != nil {
		return r, fmt.Errorf("encode a call: %w", err)
	}
	err = c.call(ctx, r.readTo(adminCall{method: http.MethodPost, body: body, timeout: changeTime}))
	return r, err
}

// errScrubGone is that a scrub ended before the command knew how.
var errScrubGone = errors.New("the scrub has ended: the export was removed, or another scrub begun")

// awaitScrub waits for the end of a scrub, and shows how far it is.
func (a *app) awaitScrub(ctx context.Context, c scrubCaller, began scrubReport) (r scrubReport, err error) {
	p := a.newProgress()
	defer p.clear()
	tick := time.NewTicker(progressAfter / 4)
	defer tick.Stop()
	for r = began; r.State == backend.ScrubRunning; {
		p.show(int(r.Offset), int(r.Size), scrubbing(r.ScrubStatus))
		select {
		case <-tick.C:
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
		r = scrubReport{}
		err := c.call(ctx, r.readTo(adminCall{method: http.MethodGet}))
		var wrong *exit
		switch {
		case errors.As(err, &wrong), err == nil && !r.Started.Equal(began.Started):
			return r, errScrubGone
		case err != nil:
			return r, unreachable(fmt.Errorf("the scrub is not known to have ended: ask %q: %w", c.socket, err))
		}
	}
	return r, nil
}

// scrubbing is how far a scrub has got.
type scrubbing backend.ScrubStatus

func (s scrubbing) String() string {
	text := fmt.Sprintf("%v of %v  %v/s", roundSize(s.Offset), roundSize(s.Size), roundSize(s.Speed))
	if found := scrubFound(s.Corrupt, s.Unreadable); found != "" {
		text += "  " + found
	}
	return text
}

// scrubFound says what a scrub found, "" if all is well.
func scrubFound(corrupt, unreadable uint64) string {
	var found []string
	if corrupt > 0 {
		found = append(found, fmt.Sprintf("%d corrupt blocks", corrupt))
	}
	if unreadable > 0 {
		found = append(found, fmt.Sprintf("%d unreadable blocks", unreadable))
	}
	return strings.Join(found, ", ")
}

// scrubNote is the line of a status about the scrubs of a disk, "" if none runs
// and the last one found nothing.
func scrubNote(s *backend.ScrubStatus) string {
	if s == nil {
		return ""
	}
	if s.State == backend.ScrubRunning {
		return fmt.Sprintf("scrub: %d%%  %v", 100*s.Offset/s.Size, scrubbing(*s))
	}
	if found := scrubFound(s.Last.Corrupt, s.Last.Unreadable); found != "" {
		return fmt.Sprintf("the scrub of %s found %s", s.Last.Ended.Format(time.RFC3339), found)
	}
	return ""
}

// printScrub prints a scrub that was begun, or that has ended. The exit code
// says whether all is well.
func (a *app) printScrub(r scrubReport, begun bool) error {
	var err error
	switch {
	case a.output == "json":
		err = a.printJSON(r)
	case !begun:
		err = a.printTable(r.rows())
	}
	switch {
	case err != nil || begun:
		return err
	case !r.Clean():
		return &exit{code: exitFalse}
	case r.State == backend.ScrubStopped:
		return fmt.Errorf("the scrub was stopped at %v of %v", roundSize(r.Offset), roundSize(r.Size))
	case r.Error != "":
		return fmt.Errorf("the scrub %s: %s", r.State, visible(r.Error))
	}
	return nil
}

// rows returns the table of a scrub that has ended.
func (r *scrubReport) rows() [][]string {
	result := "clean"
	switch {
	case r.State != backend.ScrubFinished:
		result = string(r.State)
	case r.Corrupt+r.Unreadable > 0:
		result = "damaged"
	case r.Unchecked > 0:
		result = "incomplete"
	}
	rows := [][]string{
		{"result", result},
		{"checked", fmt.Sprintf("%d bytes of %d", r.Checked, r.Size)},
		{"corrupt blocks", blocksAt(r.Corrupt, r.CorruptAt)},
		{"unreadable blocks", blocksAt(r.Unreadable, r.UnreadableAt)},
	}
	if r.Unchecked > 0 {
		rows = append(rows, []string{"unchecked regions", fmt.Sprintf("%d, whose checksums are damaged or of no use", r.Unchecked)})
	}
	return append(rows,
		[]string{"time", r.Ended.Sub(r.Started).Round(time.Millisecond).String()},
		[]string{"rate", roundSize(r.Speed).String() + "/s"})
}

// blocksAt formats a number of blocks, and where they are.
func blocksAt(n uint64, offsets []int64) string {
	if n == 0 {
		return "0"
	}
	var text []string
	for _, off := range offsets {
		text = append(text, strconv.FormatInt(off, 10))
	}
	at := strings.Join(text, ", ")
	if n > uint64(len(offsets)) {
		at += ", and more"
	}
	return fmt.Sprintf("%d, at %s", n, at)
}
