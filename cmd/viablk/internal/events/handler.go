package events

import (
	"context"
	"errors"
	"log/slog"
	"math"
)

// Handler passes records to a log and, as JSON, to a ring.
type Handler struct {
	log, ring slog.Handler
}

// NewHandler returns a handler of the records that log takes. replace changes
// attributes as slog.HandlerOptions has it.
func NewHandler(log slog.Handler, ring *Ring, replace func([]string, slog.Attr) slog.Attr) *Handler {
	return &Handler{log, slog.NewJSONHandler(ring, &slog.HandlerOptions{Level: slog.Level(math.MinInt), ReplaceAttr: replace})}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.log.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	return errors.Join(h.log.Handle(ctx, r), h.ring.Handle(ctx, r))
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.log.WithAttrs(attrs), h.ring.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.log.WithGroup(name), h.ring.WithGroup(name)}
}
