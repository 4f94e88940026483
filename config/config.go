package config

import (
	"cmp"
	"time"
)

// Config is the configuration of a viablk process. A Config returned by [Load]
// is not shared: the caller treats it as immutable and may pass it on by value.
type Config struct {
	Target Target `mapstructure:"target"`
	Attach Attach `mapstructure:"attach"`
	NBD    NBD    `mapstructure:"nbd"`
	Log    Log    `mapstructure:"log"`

	Metrics Metrics `mapstructure:"metrics"`

	// Admin is the path of the status socket. Empty means a socket in the
	// runtime directory, "none" means no socket.
	Admin string `mapstructure:"admin"`

	// AdminGroup is the group, by name or number, whose members may read at the
	// status socket. Empty means that root and the user of the process alone
	// open it.
	AdminGroup string `mapstructure:"admin_group"`

	// Insecure accepts listeners at which other hosts get the disks without
	// authentication, initiators beside NBD clients that have to use TLS, and
	// disks of other hosts' NBD servers without TLS.
	Insecure bool `mapstructure:"insecure"`

	// DrainTimeout is how long a first SIGTERM lets requests finish. Zero means
	// that nothing is waited for.
	DrainTimeout time.Duration `mapstructure:"drain_timeout"`
}

// Target is the section of the storage server.
type Target struct {
	// Listen are the URIs to listen on, NBD and VIA beside each other.
	Listen []string `mapstructure:"listen"`

	// Exports are the disks to serve. It is a list because export names are
	// case-sensitive and may contain any character; map keys are neither.
	Exports []Export `mapstructure:"exports"`

	// Security is auto, require or off: whether initiators of via+roce and
	// via+verbs show certificates, and all that is exchanged is encrypted and
	// authenticated. With auto they do at listeners that are not local, if
	// there are Certificates.
	Security string `mapstructure:"security"`

	// Certificates is the folder of the target's certificates, for VIA, and for
	// NBD over TLS unless [NBD.TLSCertificates] is another. Empty means that
	// one.
	Certificates string `mapstructure:"certificates"`

	// Connections limits the VIA connections at a time.
	Connections int `mapstructure:"connections"`

	// ConnectionsPerAddress limits those of one IPv4 address or IPv6 network of
	// 64 bits. Zero means half of Connections, and 8 at least.
	ConnectionsPerAddress int `mapstructure:"connections_per_address"`

	// Depth is the number of requests in flight per VIA connection.
	Depth int `mapstructure:"depth"`

	// InlineMax is the longest payload in bytes that travels inside a message.
	InlineMax Size `mapstructure:"inline_max"`

	// MaxIO is the longest VIA command in bytes; initiators cut longer ones.
	MaxIO Size `mapstructure:"max_io"`

	// Pool is the transfer memory of one VIA connection in bytes. Zero means
	// twice MaxIO, and 8 MiB at least.
	Pool Size `mapstructure:"pool"`

	// CopyMode is auto, bounce or zerocopy: how reads of mapped files move.
	CopyMode string `mapstructure:"copy_mode"`

	// RegisterMax is what is registered of mapped files at a time, with the NIC
	// of each VIA provider, for all connections together; in bytes.
	RegisterMax Size `mapstructure:"register_max"`

	// KeepAlive is the idle time after which a VIA connection is probed.
	KeepAlive time.Duration `mapstructure:"keepalive"`

	// IOTimeout is how long a request may be in a disk until the log says so and
	// new clients are refused. Zero means for ever. No request fails for it.
	IOTimeout time.Duration `mapstructure:"io_timeout"`

	// BusyPoll is how long a VIA connection busy-polls before it sleeps. Zero
	// means that it sleeps at once.
	BusyPoll time.Duration `mapstructure:"busy_poll"`

	// RequireDataDigest refuses initiators without [Attach.DataDigest], except
	// in sealed sessions.
	RequireDataDigest bool `mapstructure:"require_data_digest"`

	// StateFolder is where the identities of disks are kept that have no
	// extended attributes. Empty means $STATE_DIRECTORY, or /var/lib/viablk for
	// root and $XDG_STATE_HOME/viablk for users.
	StateFolder string `mapstructure:"state_folder"`
}

// Attach is the section of the initiator.
type Attach struct {
	// URI names the remote export. Empty means it is given as an argument.
	URI string `mapstructure:"uri"`

	// Paths are URIs of further paths to the disk: hosts of the same target,
	// also over other providers.
	Paths []string `mapstructure:"paths"`

	// Certificates is the folder of the initiator's certificates, which a
	// session over via+roce or via+verbs is sealed with, and TargetName who the
	// target has to be. Empty means what the URI says: none, and its host.
	Certificates string `mapstructure:"certificates"`
	TargetName   string `mapstructure:"target_name"`

	// NBD is the URI on which the remote disk appears as an NBD export. Empty
	// means it is given by --nbd.
	NBD string `mapstructure:"nbd"`

	// Depth is the number of requests in flight per connection. Zero leaves
	// it to the target.
	Depth int `mapstructure:"depth"`

	// InlineMax is the longest payload in bytes that travels inside a message.
	// Zero leaves it to the target.
	InlineMax Size `mapstructure:"inline_max"`

	// MaxIO is the longest VIA command in bytes; longer requests are cut. Zero
	// leaves it to the target.
	MaxIO Size `mapstructure:"max_io"`

	// CopyMode is auto, bounce or zerocopy: how payload outside of the bounce
	// memory moves.
	CopyMode string `mapstructure:"copy_mode"`

	// DataDigest has a checksum travel with the payload of each request to a VIA
	// target, which the end that gets the payload compares. A sealed session
	// needs and has none.
	DataDigest bool `mapstructure:"data_digest"`

	// ReadOnly opens the remote export for reading only.
	ReadOnly bool `mapstructure:"read_only"`

	// Exclusive makes this process the only client of the disk, and Preempt
	// ends other clients that are in the way.
	Exclusive bool `mapstructure:"exclusive"`
	Preempt   bool `mapstructure:"preempt"`

	// Durable says of an NBD server that it keeps what it has answered, whatever
	// happens to it, and executes nothing of a lost connection later. Without
	// it the disk fails for good if its server is lost with writes that are not
	// flushed.
	Durable bool `mapstructure:"durable"`

	// OnConflict is fail or reopen: what becomes of the disk when its target is
	// back and another client wrote to it meanwhile.
	OnConflict string `mapstructure:"on_conflict"`

	// PathPolicy is fail-over, round-robin or min-inflight: which of several
	// hosts of a target a connection uses.
	PathPolicy string `mapstructure:"path_policy"`

	// Description is what NBD clients are told of the disk. Empty means what
	// the target says, and its URI if that says nothing.
	Description string `mapstructure:"description"`

	// Clients are the NBD clients that get the disk, and ClientsReadOnly get it
	// for reading, as of an [Export]. Without either, every client gets it.
	Clients         []string `mapstructure:"clients"`
	ClientsReadOnly []string `mapstructure:"clients_read_only"`

	// MinimumBlock is what requests of NBD clients must be multiples of,
	// PreferredBlock the best size of one and MaximumPayload the longest READ
	// or WRITE, in bytes. Zero means the disk's.
	MinimumBlock   Size `mapstructure:"minimum_block"`
	PreferredBlock Size `mapstructure:"preferred_block"`
	MaximumPayload Size `mapstructure:"maximum_payload"`

	// Timeout is how long connecting and logging in may take.
	Timeout time.Duration `mapstructure:"timeout"`

	// Device is the block device of the kernel as which the remote disk
	// appears: /dev/nbdN, or auto for one that is free. Empty means none.
	Device string `mapstructure:"device"`

	// Connections is the number of connections between the kernel and this
	// process.
	Connections int `mapstructure:"connections"`

	// IOTimeout is how long the kernel waits for an answer before it gives up
	// the connection and resends the request on another. Zero means that a
	// device with one connection waits for ever, and one with more for 30
	// seconds.
	IOTimeout time.Duration `mapstructure:"io_timeout"`

	// CtrlLossTimeout is how long requests wait while the target is away; with
	// zero, the disk fails for good when its target is lost. It is also how
	// long they wait in the kernel while no process serves the device, and how
	// long Reattach tries to reach the target.
	CtrlLossTimeout time.Duration `mapstructure:"ctrl_loss_timeout"`

	// ReconnectDelay is the longest time between two attempts to reach the
	// target.
	ReconnectDelay time.Duration `mapstructure:"reconnect_delay"`

	// Reattach takes over a device that is attached to URI, and the clients of
	// the unix socket of NBD, whose process is gone.
	Reattach bool `mapstructure:"reattach"`
}

// DeviceAuto is the value of [Attach.Device] for a device that is free.
const DeviceAuto = "auto"

// Over returns an export as NBD clients of the initiator get it: with what the
// section says where it says something.
func (a Attach) Over(x Export) Export {
	x.ReadOnly = x.ReadOnly || a.ReadOnly
	x.Description = cmp.Or(a.Description, x.Description)
	if len(a.Clients)+len(a.ClientsReadOnly) > 0 {
		x.Clients, x.ClientsReadOnly = a.Clients, a.ClientsReadOnly
	}
	x.MinimumBlock = cmp.Or(a.MinimumBlock, x.MinimumBlock)
	x.PreferredBlock = cmp.Or(a.PreferredBlock, x.PreferredBlock)
	x.MaximumPayload = cmp.Or(a.MaximumPayload, x.MaximumPayload)
	return x
}

// NBD is the section of NBD serving, in the target and in the initiator.
type NBD struct {
	// Connections limits the NBD connections at a time on all listeners.
	Connections int `mapstructure:"connections"`

	// ConnectionsPerAddress limits those of one IPv4 address, IPv6 network of
	// 64 bits, or user of this host. Zero means 16 for other hosts, and that
	// only Connections limits users of this one and loopback addresses.
	ConnectionsPerAddress int `mapstructure:"connections_per_address"`

	// Handshakes limits the clients that have not chosen an export yet. With
	// one more, the address or user that has most of them loses its oldest.
	Handshakes int `mapstructure:"handshakes"`

	// Depth is the number of requests in flight per connection.
	Depth int `mapstructure:"depth"`

	// Options limits the options that one client may send in its handshake.
	Options int `mapstructure:"options"`

	// HandshakeTimeout closes a client that has not finished its handshake.
	HandshakeTimeout time.Duration `mapstructure:"handshake_timeout"`

	// ProgressTimeout closes a client that is in the middle of a request, or
	// does not take its replies, and moves no byte for so long.
	ProgressTimeout time.Duration `mapstructure:"progress_timeout"`

	// BusyPoll is how long a connection busy-polls before it sleeps. Zero means
	// that it sleeps at once.
	BusyPoll time.Duration `mapstructure:"busy_poll"`

	// TLS is off, on or require: whether clients may use TLS, or have to.
	TLS string `mapstructure:"tls"`

	// TLSCertificates is the folder of the server's certificates. Empty means
	// [Target.Certificates].
	TLSCertificates string `mapstructure:"tls_certificates"`

	// TLSVerifyPeer has clients prove by a certificate who they are.
	TLSVerifyPeer bool `mapstructure:"tls_verify_peer"`
}

// Log is the section of the log, which goes to standard error.
type Log struct {
	// Level is debug, info, warn or error: the least severe that is written.
	Level string `mapstructure:"level"`

	// Format is text or json.
	Format string `mapstructure:"format"`

	// Trace is off, or via: a line per VIA operation on standard error.
	Trace string `mapstructure:"trace"`
}

// Default returns the configuration that applies where nothing is set. Every
// key that exists has a value here.
func Default() Config {
	return Config{
		Target: Target{
			Listen:      []string{},
			Exports:     []Export{},
			Security:    "auto",
			Connections: 512,
			Depth:       128,
			InlineMax:   4 * KiB,
			MaxIO:       1 * MiB,
			CopyMode:    "auto",
			RegisterMax: 256 * MiB,
			KeepAlive:   250 * time.Millisecond,
			IOTimeout:   30 * time.Second,
			BusyPoll:    200 * time.Microsecond,
		},
		Attach: Attach{
			CopyMode: "auto", OnConflict: "fail", PathPolicy: "fail-over", Paths: []string{}, Clients: []string{}, ClientsReadOnly: []string{}, Timeout: 10 * time.Second,
			Connections: 1, CtrlLossTimeout: 10 * time.Minute, ReconnectDelay: time.Second,
		},
		NBD: NBD{
			Connections:      100,
			Handshakes:       1024,
			Depth:            128,
			Options:          32,
			HandshakeTimeout: 10 * time.Second,
			ProgressTimeout:  30 * time.Second,
			BusyPoll:         200 * time.Microsecond,
			TLS:              "off",
			TLSVerifyPeer:    true,
		},
		Log:          Log{Level: "info", Format: "text", Trace: "off"},
		Metrics:      Metrics{Exports: []string{}, ReadyAway: 10 * time.Second},
		DrainTimeout: 30 * time.Second,
	}
}
