package config

import (
	"fmt"
	"slices"
	"time"
)

// The bounds of the numeric keys. What a larger value would cost is memory of
// this process, so none is open-ended.
const (
	maximumConnections = 4096
	maximumDepth       = 1024 // requests; the bound of block.Device
	minimumInline      = 512 * Size(1)
	maximumInline      = 64 * KiB
	minimumIO          = 64 * KiB
	maximumIO          = 64 * MiB
	maximumPool        = 1 * GiB
	maximumOptions     = 4096
	minimumTimeout     = 10 * time.Millisecond
	maximumTimeout     = 24 * time.Hour
	maximumSpin        = 1 * time.Second
)

// Validate checks everything that can be checked without opening anything. It
// returns nil or an *[Error] with every complaint, in the order of the keys.
func (c Config) Validate() error {
	var bad complaints
	c.Target.validate(&bad)
	c.Attach.validate(&bad)
	c.NBD.validate(&bad)
	bad.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	bad.oneOf("log.format", c.Log.Format, "text", "json")
	bad.duration("drain_timeout", c.DrainTimeout, 0, maximumTimeout)
	return bad.err()
}

func (t Target) validate(bad *complaints) {
	for i, listen := range t.Listen {
		u, err := ParseURI(listen)
		if err == nil {
			err = u.checkListen()
		}
		if err != nil {
			bad.add(fmt.Sprintf("target.listen[%d]", i), "%v", err)
		}
	}
	t.validateExports(bad)
	bad.bounds("target.connections", t.Connections, 1, maximumConnections)
	bad.bounds("target.depth", t.Depth, 1, maximumDepth)
	bad.size("target.inline_max", t.InlineMax, minimumInline, maximumInline)
	bad.size("target.max_io", t.MaxIO, minimumIO, maximumIO)
	if t.Pool != 0 {
		bad.size("target.pool", t.Pool, t.MaxIO, maximumPool)
	}
	bad.duration("target.heartbeat", t.Heartbeat, minimumTimeout, maximumTimeout)
	bad.duration("target.spin", t.Spin, 0, maximumSpin)
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
			bad.add(key, "the name %q is already that of target.exports[%d]", e.Name, first)
		} else {
			names[e.Name] = i
		}
		if e.Default && marked >= 0 {
			bad.add(key, "only one export can be the default, and target.exports[%d] is", marked)
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

func (a Attach) validate(bad *complaints) {
	if a.URI != "" {
		u, err := ParseURI(a.URI)
		if err == nil {
			err = u.CheckRemote()
		}
		if err != nil {
			bad.add("attach.uri", "%v", err)
		}
	}
	if a.NBD != "" {
		u, err := ParseURI(a.NBD)
		if err == nil {
			err = u.checkNBD()
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
	bad.duration("attach.timeout", a.Timeout, minimumTimeout, maximumTimeout)
}

func (n NBD) validate(bad *complaints) {
	bad.bounds("nbd.connections", n.Connections, 1, maximumConnections)
	bad.bounds("nbd.depth", n.Depth, 1, maximumDepth)
	bad.bounds("nbd.options", n.Options, 1, maximumOptions)
	bad.duration("nbd.handshake_timeout", n.HandshakeTimeout, minimumTimeout, maximumTimeout)
	bad.duration("nbd.progress_timeout", n.ProgressTimeout, minimumTimeout, maximumTimeout)
	bad.duration("nbd.spin", n.Spin, 0, maximumSpin)
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

func (c *complaints) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		c.add(key, "%q is not one of %v", value, allowed)
	}
}
