package joint

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/viablk/viablk/via"
)

// find returns the part of a host, and the host as the part names it. The error
// of a host of no part wraps code.
func (a *adapter) find(host string, code error) (part int, rest string, err error) {
	name, rest, _ := strings.Cut(host, ":")
	part = slices.IndexFunc(a.parts, func(p member) bool { return p.name == name })
	if part < 0 {
		return 0, "", fmt.Errorf("host %q is of no part: %w", host, code)
	}
	return part, rest, nil
}

// configure gives a link of a part the queues of the part.
func configure(cfg via.LinkConfig, part int) via.LinkConfig {
	cfg.SendCQ, cfg.RecvCQ = cfg.SendCQ.(*cq).parts[part], cfg.RecvCQ.(*cq).parts[part]
	return cfg
}

// Connect connects over the part of the host.
func (a *adapter) Connect(ctx context.Context, host string, hello []byte, cfg via.LinkConfig) (via.Link, []byte, error) {
	part, host, err := a.find(host, via.ErrNotReachable)
	if err != nil {
		return nil, nil, err
	}
	return a.parts[part].Connect(ctx, host, hello, configure(cfg, part))
}

// Listen listens at the part of the host.
func (a *adapter) Listen(host string, incoming func(via.Incoming)) (via.Listening, error) {
	part, host, err := a.find(host, via.ErrInvalidParameter)
	if err != nil {
		return nil, err
	}
	return a.parts[part].Listen(host, func(in via.Incoming) { incoming(request{in, part}) })
}

// request is a connection request of a part.
type request struct {
	via.Incoming
	part int
}

// Unwrap implements [via.Wrapper]: the part knows who its peer is, and whether
// a request can be confirmed.
func (r request) Unwrap() via.Incoming { return r.Incoming }

// Accept accepts with the queues of the part.
func (r request) Accept(ctx context.Context, reply []byte, cfg via.LinkConfig) (via.Link, error) {
	return r.Incoming.Accept(ctx, reply, configure(cfg, r.part))
}
