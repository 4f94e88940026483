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

// The options by where they apply. A flag is a list, a bool or a value, and has
// a default, as follows from the configuration.
var (
	commonOptions = []option{
		{"admin", "admin", "status socket at `PATH`, or none; default: $XDG_RUNTIME_DIR/viablk/PID.sock, else /run/viablk/PID.sock"},
		{"admin-group", "admin_group", "let members of `GROUP` read at the status socket; they change nothing"},
		{"insecure", "insecure", "accept listeners that give the disks to any host, and NBD servers of other hosts without TLS"},
		{"drain-timeout", "drain_timeout", "`TIME` that the first SIGTERM gives requests to finish"},
		{"log-level", "log.level", "log `LEVEL`: debug, info, warn or error"},
		{"log-format", "log.format", "log `FORMAT`: text or json"},
		{"trace", "log.trace", "write a line per VIA operation to standard error, `MODE`: off or via"},
		{"nbd-connections", "nbd.connections", "`NUMBER` of NBD connections at a time"},
		{"nbd-connections-per-address", "nbd.connections_per_address", "`NUMBER` of NBD connections per client address or local user; 0: 16 of other hosts, unlimited of this one"},
		{"nbd-handshakes", "nbd.handshakes", "`NUMBER` of NBD handshakes at a time, besides the connections"},
		{"nbd-depth", "nbd.depth", "`NUMBER` of requests in flight per NBD connection (queue depth)"},
		{"nbd-options", "nbd.options", "`NUMBER` of options in one NBD handshake"},
		{"nbd-handshake-timeout", "nbd.handshake_timeout", "`TIME` for an NBD handshake"},
		{"nbd-progress-timeout", "nbd.progress_timeout", "`TIME` that an NBD client may stall inside a request"},
		{"tls", "nbd.tls", "TLS `MODE` for NBD clients, on is optional: off, on or require"},
		{"tls-certificates", "nbd.tls_certificates", "`FOLDER` of ca-cert.pem, server-cert.pem and server-key.pem; empty: target.certificates"},
		{"tls-verify-peer", "nbd.tls_verify_peer", "require and verify client certificates"},
		{"nbd-busy-poll", "nbd.busy_poll", "busy-poll an NBD connection for `TIME` before sleeping"},
		{"metrics-listen", "metrics.listen", "serve metrics and health over HTTP at `HOST:PORT`; :PORT is that of 127.0.0.1"},
	}
	exportOptions = []option{
		{"export", "target.exports", "serve disk `NAME=[limit:...:]BACKEND`; may be repeated"},
		{"state-folder", "target.state_folder", "keep identities of disks without extended attributes in `FOLDER`; default: $STATE_DIRECTORY, else /var/lib/viablk or $XDG_STATE_HOME/viablk"},
	}
	targetOptions = []option{
		{"listen", "target.listen", "listen at `URI`, NBD or VIA; may be repeated"},
		{"security", "target.security", "certificates and encryption for VIA between hosts, `MODE`, auto is at listeners that other hosts reach: auto, require or off"},
		{"certificates", "target.certificates", "`FOLDER` of ca-cert.pem, server-cert.pem and server-key.pem, for VIA and NBD; empty: --tls-certificates"},
		{"connections", "target.connections", "`NUMBER` of VIA connections at a time"},
		{"connections-per-address", "target.connections_per_address", "`NUMBER` of VIA connections per address of an initiator, or IPv6 network of 64 bits; 0: half of --connections"},
		{"depth", "target.depth", "`NUMBER` of requests in flight per VIA connection (queue depth)"},
		{"inline-max", "target.inline_max", "largest inline payload, `SIZE`"},
		{"max-io", "target.max_io", "longest read or write, `SIZE`"},
		{"copy-mode", "target.copy_mode", "zero-copy `MODE` for reads of mapped files: auto, bounce or zerocopy"},
		{"register-max", "target.register_max", "register at most `SIZE` of mapped files at a time"},
		{"require-data-digest", "target.require_data_digest", "refuse initiators without --data-digest, except with certificates, which protect more"},
		{"pool", "target.pool", "bounce pool per VIA connection, `SIZE`; 0: twice --max-io"},
		{"keepalive", "target.keepalive", "interval, `TIME`, of the keepalives of idle initiators"},
		{"io-timeout", "target.io_timeout", "`TIME` that a request may be in a disk until new clients are refused; 0: for ever"},
		{"busy-poll", "target.busy_poll", "busy-poll a VIA connection for `TIME` before sleeping"},
	}
	attachOptions = []option{
		{"nbd", "attach.nbd", "serve the remote disk at NBD `URI`"},
		{"depth", "attach.depth", "`NUMBER` of requests in flight per VIA connection (queue depth); 0: the target's"},
		{"inline-max", "attach.inline_max", "largest inline payload, `SIZE`; 0: the target's"},
		{"max-io", "attach.max_io", "longest VIA command, `SIZE`; 0: the target's"},
		{"copy-mode", "attach.copy_mode", "zero-copy policy `MODE`, bounce copies always, zerocopy registers always: auto, bounce or zerocopy"},
		{"data-digest", "attach.data_digest", "send a CRC32C with the payload of each request to a VIA target, and compare it; a session with certificates needs none"},
		{"description", "attach.description", "describe the disk to NBD clients as `TEXT`; empty: as the target does"},
		{"client", "attach.clients", "serve the disk to the NBD client with `NAME` in its certificate, or user:NAME or uid:N of this host, and no other; may be repeated"},
		{"client-read-only", "attach.clients_read_only", "serve the disk for reading to the NBD client `NAME`, and no other; may be repeated"},
		{"minimum-block", "attach.minimum_block", "have NBD requests be multiples of `SIZE`; 0: the disk's"},
		{"preferred-block", "attach.preferred_block", "recommend `SIZE` to NBD clients; 0: the disk's"},
		{"maximum-payload", "attach.maximum_payload", "longest NBD READ or WRITE, `SIZE`; 0: the disk's"},
		{"read-only", "attach.read_only", "open the remote disk for reading only"},
		{"exclusive", "attach.exclusive", "be the only client of the remote disk"},
		{"preempt", "attach.preempt", "end other clients of the remote disk that are in the way"},
		{"durable", "attach.durable", "an NBD server keeps what it has answered, whatever happens to it: go on after its loss without a flush"},
		{"on-conflict", "attach.on_conflict", "`POLICY` if another client wrote to the disk while its target was lost, EIO for good or for what waits: fail or reopen"},
		{"path", "attach.paths", "further path to the same disk, `URI` of a host of its target, also over another provider; may be repeated"},
		{"path-policy", "attach.path_policy", "`POLICY` of several hosts, HOST,HOST in the URI or --path, for each connection: fail-over, round-robin or min-inflight"},
		{"timeout", "attach.timeout", "`TIME` for connecting and logging in"},
	}
	remoteOptions = []option{
		{"certificates", "attach.certificates", "`FOLDER` of ca-cert.pem, client-cert.pem and client-key.pem for a target between hosts"},
		{"target-name", "attach.target_name", "`NAME` that the certificate of the target has; empty: the host of the URI"},
	}
	deviceOptions = []option{
		{"device", "attach.device", "make the remote disk the kernel's block `DEVICE`: /dev/nbdN, or auto for one that is free"},
		{"connections", "attach.connections", "`NUMBER` of connections between the kernel and this process"},
		{"io-timeout", "attach.io_timeout", "`TIME` after which the kernel retries a request; 0: never"},
		{"ctrl-loss-tmo", "attach.ctrl_loss_timeout", "how long, `TIME`, I/O waits for a lost target or a process that serves the device; 0s: fail at once"},
		{"reconnect-delay", "attach.reconnect_delay", "longest `TIME` between two attempts to reach the target"},
		{"reattach", "attach.reattach", "take over a device, or the clients of an NBD unix socket, whose process ended"},
	}
	adminOption = commonOptions[:1]
	stateOption = exportOptions[1:2]
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
