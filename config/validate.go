package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/viablk/viablk/internal/access"
)

// The bounds of the numeric keys. A larger value would cost memory of
// this process, so none is open-ended.
const (
	maximumConnections = 4096  // over VIA
	maximumClients     = 65536 // over NBD
	maximumDepth       = 1024  // requests; the bound of block.Device
	minimumInline      = 512 * Size(1)
	maximumInline      = 64 * KiB
	minimumIO          = 64 * KiB
	maximumIO          = 64 * MiB
	maximumPool        = 1 * GiB
	minimumRegister    = 2 * MiB // a huge page
	maximumRegister    = 1 << 40 * Size(1)
	maximumOptions     = 4096
	minimumTimeout     = 10 * time.Millisecond
	maximumTimeout     = 24 * time.Hour
	maximumBusyPoll    = 1 * time.Second

	maximumKernelConnections = 64
)

// words are the values of keys that have a few.
var words = map[string][]string{
	"attach.copy_mode":   {"auto", "bounce", "zerocopy"},
	"attach.on_conflict": {"fail", "reopen"},
	"attach.path_policy": {"fail-over", "round-robin", "min-inflight"},
	"log.format":         {"text", "json"},
	"log.level":          {"debug", "info", "warn", "error"},
	"log.trace":          {"off", "via"},
	"nbd.tls":            {"off", "on", "require"},
	"target.copy_mode":   {"auto", "bounce", "zerocopy"},
	"target.security":    {"auto", "require", "off"},
}

// Validate checks everything that can be checked without opening anything, the
// backends of exports by what knows them, which may be nil. It returns nil or
// an *[Error] with every complaint, in the order of the keys.
func (c Config) Validate(backends BackendCheck) error {
	var bad complaints
	c.Target.validate(&bad, c.NBD)
	c.validateBackends(&bad, backends)
	c.Attach.validate(&bad, c.NBD)
	c.NBD.validate(&bad, c.NBDCertificates())
	c.validateSecurity(&bad)
	c.validateExposure(&bad)
	c.validateAccess(&bad)
	if !validGroup(c.AdminGroup) {
		bad.add("admin_group", "%q is neither the name nor the number of a group", c.AdminGroup)
	}
	bad.oneOf("log.level", c.Log.Level)
	bad.oneOf("log.format", c.Log.Format)
	bad.oneOf("log.trace", c.Log.Trace)
	c.Metrics.validate(&bad, c.Insecure)
	bad.duration("drain_timeout", c.DrainTimeout, 0, maximumTimeout)
	return bad.err()
}

// validGroup reports whether a name or number can be that of a group, or is
// empty.
func validGroup(name string) bool {
	const most = 256 // bytes, the limit of user names
	return len(name) <= most && !strings.ContainsFunc(name, func(r rune) bool { return unicode.IsControl(r) || r == ':' || r == ',' })
}

func (t Target) validate(bad *complaints, n NBD) {
	for i, listen := range t.Listen {
		u, err := ParseURI(listen)
		if err == nil {
			err = u.checkListen(n)
		}
		if err != nil {
			bad.add(fmt.Sprintf("target.listen[%d]", i), "%v", err)
		}
	}
	t.validateExports(bad)
	bad.oneOf("target.security", t.Security)
	bad.bounds("target.connections", t.Connections, 1, maximumConnections)
	bad.bounds("target.connections_per_address", t.ConnectionsPerAddress, 0, maximumConnections)
	bad.bounds("target.depth", t.Depth, 1, maximumDepth)
	bad.size("target.inline_max", t.InlineMax, minimumInline, maximumInline)
	bad.size("target.max_io", t.MaxIO, minimumIO, maximumIO)
	if t.Pool != 0 {
		bad.size("target.pool", t.Pool, t.MaxIO, maximumPool)
	}
	bad.oneOf("target.copy_mode", t.CopyMode)
	bad.size("target.register_max", t.RegisterMax, minimumRegister, maximumRegister)
	bad.duration("target.keepalive", t.KeepAlive, minimumTimeout, maximumTimeout)
	bad.duration("target.io_timeout", t.IOTimeout, 0, maximumTimeout)
	bad.duration("target.busy_poll", t.BusyPoll, 0, maximumBusyPoll)
}

func (t Target) validateExports(bad *complaints) {
	names := make(map[string]int, len(t.Exports))
	marked := -1
	for i, e := range t.Exports {
		key := fmt.Sprintf("target.exports[%d]", i)
		if err := e.validate(); err != nil {
			bad.add(key, "%v", err)
		}
		if first, ok := names[e.Name]; ok {
			bad.addBeside(key, fmt.Sprintf("target.exports[%d]", first), "the name %q is already that of", e.Name)
		} else {
			names[e.Name] = i
		}
		if e.Default && marked >= 0 {
			bad.addBeside(key, fmt.Sprintf("target.exports[%d]", marked), "only one export can be the default: another one is")
		}
		if e.Default {
			marked = i
		}
	}
	if empty, ok := names[""]; ok && marked >= 0 && marked != empty {
		bad.add(fmt.Sprintf("target.exports[%d]", marked),
			"cannot be the default: target.exports[%d] has the empty name", empty)
	}
}

// BackendCheck returns what is wrong with the specification of a disk, and
// opens nothing. The error is an *[UnsafeError] if the disk is unsafe in a
// configuration that is not insecure.
type BackendCheck func(spec string, insecure bool) error

// UnsafeError is the error of a valid specification of a disk that other hosts
// could read or change: it takes a configuration that is insecure.
type UnsafeError struct{ Message string }

// Error returns the message.
func (e *UnsafeError) Error() string { return e.Message }

// validateBackends asks what knows backends about those of the exports.
func (c Config) validateBackends(bad *complaints, backends BackendCheck) {
	if backends == nil {
		return
	}
	for i, e := range c.Target.Exports {
		if e.Backend == "" || strings.HasPrefix(e.Backend, limitPrefix) {
			continue // see Export.validate
		}
		err := backends(e.Backend, c.Insecure)
		if err == nil {
			continue
		}
		p := Problem{Key: fmt.Sprintf("target.exports[%d].backend", i), Message: fmt.Sprintf("export %q: %v", e.Name, err)}
		p.Unsafe = errors.As(err, new(*UnsafeError))
		*bad = append(*bad, p)
	}
}

func (a Attach) validate(bad *complaints, n NBD) {
	if a.URI != "" {
		u, err := a.Remote()
		if err == nil {
			err = u.CheckRemote()
		}
		if err != nil {
			bad.add("attach.uri", "%v", err)
		}
	}
	a.validatePaths(bad)
	if a.NBD != "" {
		u, err := ParseURI(a.NBD)
		if err == nil {
			err = u.checkNBD(n)
		}
		if err != nil {
			bad.add("attach.nbd", "%v", err)
		}
	}
	bad.bounds("attach.depth", a.Depth, 0, maximumDepth)
	if a.InlineMax != 0 {
		bad.size("attach.inline_max", a.InlineMax, minimumInline, maximumInline)
	}
	if a.MaxIO != 0 {
		bad.size("attach.max_io", a.MaxIO, minimumIO, maximumIO)
	}
	bad.oneOf("attach.copy_mode", a.CopyMode)
	bad.oneOf("attach.on_conflict", a.OnConflict)
	bad.oneOf("attach.path_policy", a.PathPolicy)
	if a.ReadOnly && (a.Exclusive || a.Preempt) {
		bad.add("attach.read_only", "a disk that is opened for reading only is neither exclusive nor does it preempt: set one of them")
	}
	if err := validateDescription(a.Description); err != nil {
		bad.add("attach.description", "%v", err)
	}
	if _, err := access.Parse(a.Clients, nil); err != nil {
		bad.add("attach.clients", "%v", err)
	} else if _, err := access.Parse(a.Clients, a.ClientsReadOnly); err != nil {
		bad.add("attach.clients_read_only", "%v", err)
	}
	bad.size("attach.minimum_block", a.MinimumBlock, 0, maximumIO)
	bad.size("attach.preferred_block", a.PreferredBlock, 0, maximumIO)
	bad.size("attach.maximum_payload", a.MaximumPayload, 0, maximumIO)
	bad.duration("attach.timeout", a.Timeout, minimumTimeout, maximumTimeout)
	a.validateDevice(bad)
}

func (a Attach) validateDevice(bad *complaints) {
	if a.Device != "" && a.Device != DeviceAuto && !strings.Contains(a.Device, "nbd") {
		bad.add("attach.device", "%q is neither /dev/nbdN nor %s", a.Device, DeviceAuto)
	}
	bad.bounds("attach.connections", a.Connections, 1, maximumKernelConnections)
	bad.duration("attach.io_timeout", a.IOTimeout, 0, maximumTimeout)
	bad.duration("attach.ctrl_loss_timeout", a.CtrlLossTimeout, 0, maximumTimeout)
	bad.duration("attach.reconnect_delay", a.ReconnectDelay, minimumTimeout, maximumTimeout)
	if a.Reattach {
		a.validateReattach(bad)
	}
}

// validateReattach checks that there is what a process can take over. URIs that
// are wrong have their complaint already.
func (a Attach) validateReattach(bad *complaints) {
	local, localErr := ParseURI(a.NBD)
	remote, err := a.Remote()
	switch {
	case a.NBD != "" && localErr != nil:
	case local.Socket == "" && a.Device == "":
		bad.add("attach.reattach", "there is no device or unix socket to take over: set attach.device or attach.nbd")
	case a.URI != "" && err == nil && !remote.VIA() && !a.Durable:
		bad.add("attach.reattach", "an NBD server cannot tell whether it lost writes, or still executes some, of the process before: set attach.durable if it does neither")
	}
}

func (n NBD) validate(bad *complaints, certificates string) {
	bad.bounds("nbd.connections", n.Connections, 1, maximumClients)
	bad.bounds("nbd.connections_per_address", n.ConnectionsPerAddress, 0, maximumClients)
	bad.bounds("nbd.handshakes", n.Handshakes, 1, maximumClients)
	bad.bounds("nbd.depth", n.Depth, 1, maximumDepth)
	bad.bounds("nbd.options", n.Options, 1, maximumOptions)
	bad.duration("nbd.handshake_timeout", n.HandshakeTimeout, minimumTimeout, maximumTimeout)
	bad.duration("nbd.progress_timeout", n.ProgressTimeout, minimumTimeout, maximumTimeout)
	bad.duration("nbd.busy_poll", n.BusyPoll, 0, maximumBusyPoll)
	bad.oneOf("nbd.tls", n.TLS)
	if (n.TLS == "on" || n.TLS == "require") && certificates == "" {
		bad.add("nbd.tls", "%s needs certificates: set nbd.tls_certificates to their folder; viablk pki makes one", n.TLS)
	}
}

func (c *complaints) bounds(key string, value, least, most int) {
	if value < least || value > most {
		c.add(key, "%d is not in %d…%d", value, least, most)
	}
}

func (c *complaints) size(key string, value, least, most Size) {
	if value < least || value > most {
		c.add(key, "%v is not in %v…%v", value, least, most)
	}
}

func (c *complaints) duration(key string, value, least, most time.Duration) {
	if value < least || value > most {
		c.add(key, "%v is not in %v…%v", value, least, most)
	}
}

func (c *complaints) oneOf(key, value string) {
	if allowed := words[key]; !slices.Contains(allowed, value) {
		last := len(allowed) - 1
		c.add(key, "must be %s or %s, not %q", strings.Join(allowed[:last], ", "), allowed[last], value)
	}
}
