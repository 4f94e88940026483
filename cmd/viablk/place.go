package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/transfer"
	"github.com/viablk/viablk/target/backend"
)

// placeOptions are the flags of commands that open disks wherever they are.
type placeOptions struct {
	options            *optionSet
	connections, depth int
	length             config.Size
}

// Bounds of what a transfer has in flight.
const (
	mostPlaceConnections = 16
	mostPlaceDepth       = 256
	leastPlaceLength     = 4 * config.KiB
	mostPlaceLength      = 32 * config.MiB
	mostPlaceMemory      = 1 * config.GiB // of one side
)

// remotePlaceOptions are the options of remote disks that such commands have.
var remotePlaceOptions = pickOptions("certificates", "target-name", "timeout", "data-digest", "durable", "ctrl-loss-tmo", "log-level", "log-format")

// pickOptions returns options by the names of their flags.
func pickOptions(names ...string) []option {
	var list []option
	for _, name := range names {
		for _, group := range [][]option{remoteOptions, attachOptions, deviceOptions, commonOptions} {
			for _, o := range group {
				if o.flag == name {
					list = append(list, o)
				}
			}
		}
	}
	return list
}

// addPlaceOptions registers the flags, with some defaults.
func addPlaceOptions(cmd *cobra.Command, connections, depth int, length config.Size) *placeOptions {
	p := &placeOptions{options: addOptions(cmd, remotePlaceOptions)}
	cmd.Flags().IntVar(&p.connections, "connections", connections, "`NUMBER` of connections to each disk")
	cmd.Flags().IntVar(&p.depth, "depth", depth, "`NUMBER` of requests in flight per connection (queue depth)")
	cmd.Flags().TextVar(&p.length, "request-size", length, "longest read or write, `SIZE`, a power of two")
	return p
}

// addTransferOptions adds the options of copies and comparisons. Each
// connection is the work of a thread. The requests in flight stay within a few
// megabytes, which caches hold.
func addTransferOptions(cmd *cobra.Command) *placeOptions {
	p := addPlaceOptions(cmd, min(4, runtime.NumCPU()), 8, 512*config.KiB)
	cmd.Flags().Lookup("connections").DefValue = "one per processor, at most 4"
	return p
}

// check returns what is wrong with the flags.
func (p *placeOptions) check() error {
	switch {
	case p.connections < 1 || p.connections > mostPlaceConnections:
		return usage("--connections is from 1 to %d, not %d", mostPlaceConnections, p.connections)
	case p.depth < 1 || p.depth > mostPlaceDepth:
		return usage("--depth is from 1 to %d, not %d", mostPlaceDepth, p.depth)
	case p.length < leastPlaceLength || p.length > mostPlaceLength || p.length&(p.length-1) != 0:
		return usage("--request-size is a power of two from %v to %v, not %v", leastPlaceLength, mostPlaceLength, p.length)
	case config.Size(p.connections*p.depth)*p.length > mostPlaceMemory:
		return usage("%d connections with %d requests of %v need more than %v: lower one of them", p.connections, p.depth, p.length, mostPlaceMemory)
	}
	return nil
}

// places opens disks for one command.
type places struct {
	attach config.Attach
	log    *slog.Logger
}

// places returns what opens disks as the flags say.
func (a *app) places(p *placeOptions) (*places, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	e, err := a.load(p.options.file, p.options.given())
	if err != nil {
		return nil, err
	}
	if _, given := p.options.given()["log.level"]; !given {
		e.Config.Log.Level = "warn"
	}
	return &places{e.Config.Attach, newLog(e.Config.Log, a.stderr)}, nil
}

// place is an open disk.
type place struct {
	transfer.Side
	close func() error
}

// isURI reports whether an argument is meant to be a URI and not a path.
func isURI(argument string) bool { return strings.Contains(argument, "://") }

// open opens the disk that an argument names: a URI, a file or a block device.
// If make is not 0, a file that is not there is made, with so many bytes. The
// caller closes the disk.
func (p *places) open(ctx context.Context, argument string, readOnly bool, size int64) (place, error) {
	if !isURI(argument) {
		return p.openPath(argument, readOnly, size)
	}
	u, err := config.ParseURI(argument)
	if err == nil {
		u = u.With(p.attach.Certificates, p.attach.TargetName)
		err = u.CheckRemote()
	}
	if err != nil {
		return place{}, usage("%v", err)
	}
	c := p.attach
	c.ReadOnly = readOnly
	remote, err := dialRemote(ctx, u, c, nil, p.log, nil)
	if err != nil {
		return place{}, err
	}
	return place{Side: transfer.Side{Name: u.String(), Device: remote.device}, close: remote.close}, nil
}

// openPath opens a file or a block device. It leaves the identity that a target
// keeps with it alone.
func (p *places) openPath(path string, readOnly bool, size int64) (place, error) {
	st, err := os.Stat(path)
	made := errors.Is(err, fs.ErrNotExist) && size > 0
	switch {
	case err == nil && st.Mode()&(fs.ModeDevice|fs.ModeCharDevice) == fs.ModeDevice:
	case err == nil && !st.Mode().IsRegular():
		return place{}, usage("%s is neither a regular file nor a block device", path)
	case err == nil && st.Mode().IsRegular() && st.Size() == 0:
		return place{}, usage("%s is empty: a disk has a size; remove it, or grow it with truncate", path)
	case errors.Is(err, fs.ErrNotExist) && !made:
		return place{}, fmt.Errorf("%s: %w", path, fs.ErrNotExist)
	}
	spec := "file:" + strings.NewReplacer("%", "%25", "?", "%3F").Replace(path) + "?"
	query := url.Values{"identity": {"0"}}
	if made {
		query.Set("create", fmt.Sprint(size))
	}
	d, err := backend.Open(spec+query.Encode(), backend.Options{ReadOnly: readOnly, Log: p.log})
	if err != nil {
		return place{}, err
	}
	return place{Side: transfer.Side{Name: path, Device: d}, close: d.Close}, nil
}
