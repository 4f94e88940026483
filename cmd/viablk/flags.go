package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/viablk/viablk/config"
)

// option is a flag that sets a key of the configuration.
type option struct {
	flag  string
	key   string
	usage string
}

// The options by where they apply. What is a list, a bool or a value, and the
// default, follows from the configuration.
var (
	commonOptions = []option{
		{"admin", "admin", "status socket at `PATH`, or none"},
		{"drain-timeout", "drain_timeout", "`TIME` that the first SIGTERM gives requests to finish"},
		{"log-level", "log.level", "log `LEVEL`: debug, info, warn or error"},
		{"log-format", "log.format", "log `FORMAT`: text or json"},
		{"nbd-connections", "nbd.connections", "`NUMBER` of NBD connections at a time"},
		{"nbd-connections-per-address", "nbd.connections_per_address", "`NUMBER` of these from one address or user; 0: no limit of its own"},
		{"nbd-handshakes", "nbd.handshakes", "`NUMBER` of NBD handshakes at a time, besides the connections"},
		{"nbd-depth", "nbd.depth", "`NUMBER` of requests under way on one NBD connection"},
		{"nbd-options", "nbd.options", "`NUMBER` of options in one NBD handshake"},
		{"nbd-handshake-timeout", "nbd.handshake_timeout", "`TIME` for an NBD handshake"},
		{"nbd-progress-timeout", "nbd.progress_timeout", "`TIME` that an NBD client may stall inside a request"},
		{"tls", "nbd.tls", "whether NBD clients may use TLS or have to: `MODE` off, on or require"},
		{"tls-certificates", "nbd.tls_certificates", "`FOLDER` of ca-cert.pem, server-cert.pem and server-key.pem"},
		{"tls-verify-peer", "nbd.tls_verify_peer", "have NBD clients prove by a certificate who they are"},
		{"nbd-spin", "nbd.spin", "`TIME` that an NBD connection looks for work before it sleeps"},
	}
	exportOptions = []option{
		{"export", "target.exports", "serve disk `NAME=[limit:…:]SPEC`; may be repeated"},
	}
	targetOptions = []option{
		{"listen", "target.listen", "listen at `URI`, NBD or VIA; may be repeated"},
		{"connections", "target.connections", "`NUMBER` of VIA connections at a time"},
		{"depth", "target.depth", "`NUMBER` of requests under way on one VIA connection"},
		{"inline-max", "target.inline_max", "longest payload inside a message, `SIZE`"},
		{"max-io", "target.max_io", "longest read or write, `SIZE`"},
		{"copy-mode", "target.copy_mode", "move reads of mapped files by `MODE`: auto, bounce or zerocopy"},
		{"register-max", "target.register_max", "register at most `SIZE` of mapped files at a time"},
		{"pool", "target.pool", "transfer memory of one VIA connection, `SIZE`; 0: twice --max-io"},
		{"heartbeat", "target.heartbeat", "idle `TIME` after which a VIA connection is probed"},
		{"spin", "target.spin", "`TIME` that a VIA connection looks for work before it sleeps"},
	}
	attachOptions = []option{
		{"nbd", "attach.nbd", "serve the remote disk at NBD `URI`"},
		{"depth", "attach.depth", "`NUMBER` of requests under way on one VIA connection; 0: the target's"},
		{"inline-max", "attach.inline_max", "longest payload inside a message, `SIZE`; 0: the target's"},
		{"max-io", "attach.max_io", "longest VIA command, `SIZE`; 0: the target's"},
		{"copy-mode", "attach.copy_mode", "move payload outside of bounce memory by `MODE`: auto, bounce or zerocopy"},
		{"description", "attach.description", "describe the disk to NBD clients as `TEXT`; empty: as the target does"},
		{"client", "attach.clients", "serve the disk to the NBD client with `NAME` in its certificate, and no other; may be repeated"},
		{"minimum-block", "attach.minimum_block", "have NBD requests be multiples of `SIZE`; 0: the disk's"},
		{"preferred-block", "attach.preferred_block", "recommend `SIZE` to NBD clients; 0: the disk's"},
		{"maximum-payload", "attach.maximum_payload", "longest NBD READ or WRITE, `SIZE`; 0: the disk's"},
		{"read-only", "attach.read_only", "open the remote disk for reading only"},
		{"timeout", "attach.timeout", "`TIME` for connecting and logging in"},
	}
	deviceOptions = []option{
		{"device", "attach.device", "make the remote disk the kernel's block device `PATH`: /dev/nbdN, or auto for one that is free"},
		{"connections", "attach.connections", "`NUMBER` of connections between the kernel and this process"},
		{"io-timeout", "attach.io_timeout", "`TIME` after which the kernel sends a request again; 0: never"},
		{"ctrl-loss-tmo", "attach.ctrl_loss_timeout", "`TIME` that requests wait while the target is away, or no process serves the device; then they fail; 0s: fail at once, for good"},
		{"reconnect-delay", "attach.reconnect_delay", "longest `TIME` between two attempts to reach the target"},
		{"reattach", "attach.reattach", "take over the device, whose process is gone"},
	}
	adminOption = commonOptions[:1]
)

// optionSet is the options of one command.
type optionSet struct {
	flags   *pflag.FlagSet
	options []option
	file    string // --config
}

// addOptions registers options, and --config, with a command.
func addOptions(cmd *cobra.Command, groups ...[]option) *optionSet {
	set := &optionSet{flags: cmd.Flags(), options: slices.Concat(groups...)}
	defaults := make(map[string]any)
	for _, s := range config.Defaults() {
		defaults[s.Key] = s.Value
	}
	set.flags.StringVar(&set.file, "config", "", "read configuration `FILE` (.yaml, .toml or .json)")
	for _, o := range set.options {
		switch value := defaults[o.key].(type) {
		case []string, []config.Export:
			set.flags.StringArray(o.flag, nil, o.usage)
		case bool:
			set.flags.Bool(o.flag, value, o.usage)
		default:
			set.flags.String(o.flag, fmt.Sprint(value), o.usage)
		}
		set.flags.Lookup(o.flag).Annotations = map[string][]string{keyAnnotation: {o.key}}
	}
	return set
}

// given returns what the command line sets.
func (s *optionSet) given() config.Flags {
	given := make(config.Flags)
	for _, o := range s.options {
		f := s.flags.Lookup(o.flag)
		if !f.Changed {
			continue
		}
		var value any = f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = list.GetSlice()
		}
		given[o.key] = config.Flag{Name: "--" + o.flag, Value: value}
	}
	return given
}
