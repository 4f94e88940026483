package main

import (
	"context"
	"log/slog"
	"time"
)

// maximumStateLines bounds the lines for exports, and those for sessions, that
// SIGUSR1 logs.
const maximumStateLines = 256

// routineState logs the state at SIGUSR1, also while the process drains, until
// it ends. Signals that come meanwhile are one.
func (s *service) routineState() {
	for {
		select {
		case <-s.inquiries:
			if s.report != nil {
				now := s.report()
				logState(s.log, &now, s.draining.Load())
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// logState logs a line for the process, one for each export and face, and one
// for each session, at INFO, or at the lowest level above it that the log
// shows: the state was asked for.
func logState(log *slog.Logger, p *processStatus, draining bool) {
	ctx, level := context.Background(), slog.LevelInfo
	for level < slog.LevelError && !log.Enabled(ctx, level) {
		level += slog.LevelWarn - slog.LevelInfo
	}
	log.Log(ctx, level, "state of the process", "event", "state", "command", p.Command, "version", p.Version, "uptime", time.Since(p.Started).Round(time.Second),
		"exports", len(p.Exports), "sessions", len(p.Sessions), "draining", draining, "panics", p.Panics)
	for i := range p.Faces[:min(len(p.Faces), maximumStateLines)] {
		f := &p.Faces[i]
		log.Log(ctx, level, "state of an export", "event", "state_export", "export", f.Export, "face", f.Face, "state", f.State, "reason", f.Reason,
			"size", f.Size, "connections", f.Connections, "in_flight", f.InFlight, "reads", f.Reads, "writes", f.Writes,
			"bytes_read", f.BytesRead, "bytes_written", f.BytesWritten, "errors", f.Errors)
	}
	for i := range p.Sessions[:min(len(p.Sessions), maximumStateLines)] {
		x := &p.Sessions[i]
		log.Log(ctx, level, "state of a session", "event", "state_session", "session", x.ID[:min(len(x.ID), shortIDLength)], "face", x.Face, "peer", x.Peer,
			"identity", x.Identity, "exports", x.Exports, "connections", x.Connections, "opened", x.Opened, "last_active", x.LastActive,
			"reads", x.Reads, "writes", x.Writes, "errors", x.Errors)
	}
	if exports, sessions := max(0, len(p.Faces)-maximumStateLines), max(0, len(p.Sessions)-maximumStateLines); exports+sessions > 0 {
		log.Log(ctx, level, "there are more: ask viablk status and viablk session ls", "event", "state_more", "exports", exports, "sessions", sessions)
	}
}
