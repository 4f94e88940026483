package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Page answers scrapes. It encodes a snapshot once for each format, however
// many clients scrape.
type Page struct {
	source func(context.Context) (*Snapshot, error)

	mu sync.Mutex
	// +checklocks:mu
	registry *prometheus.Registry
	// +checklocks:mu
	collector *collector
	// +checklocks:mu
	families []*dto.MetricFamily // of collector.snapshot
	// +checklocks:mu
	encoded map[variant][]byte // of the same
}

// variant is a form of the page: a format and whether it is compressed.
type variant struct {
	format expfmt.Format
	zipped bool
}

// maximumVariants bounds the forms of one snapshot that are kept.
const maximumVariants = 16

// NewPage returns the page of the snapshots that source returns. It returns the
// same pointer as long as the snapshot is the same, and is safe for concurrent
// use. With more than [MaximumExports] exports only those in selected have
// series each.
func NewPage(source func(context.Context) (*Snapshot, error), selected []string) *Page {
	c := &collector{selected: make(map[string]bool)}
	for _, name := range selected[:min(len(selected), MaximumExports)] {
		c.selected[name] = true
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &Page{source: source, registry: registry, collector: c}
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s, err := p.source(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	v := variant{expfmt.NegotiateIncludingOpenMetrics(r.Header), acceptsGzip(r.Header)}
	body, err := p.encode(s, v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(v.format))
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("Vary", "Accept, Accept-Encoding")
	if v.zipped {
		w.Header().Set("Content-Encoding", "gzip")
	}
	_, _ = w.Write(body) // an error is a client that went away
}

// acceptsGzip reports whether the client takes a compressed page.
func acceptsGzip(h http.Header) bool {
	for part := range strings.SplitSeq(h.Get("Accept-Encoding"), ",") {
		coding, parameters, _ := strings.Cut(strings.TrimSpace(part), ";")
		if coding == "gzip" {
			return strings.ReplaceAll(parameters, " ", "") != "q=0"
		}
	}
	return false
}

// encode returns a form of the page of a snapshot.
func (p *Page) encode(s *Snapshot, v variant) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.collector.snapshot != s {
		p.collector.snapshot, p.encoded, p.families = s, nil, nil
		families, err := p.registry.Gather()
		if err != nil {
			p.collector.snapshot = nil
			return nil, fmt.Errorf("gather metrics: %w", err)
		}
		p.families, p.encoded = families, make(map[variant][]byte)
	}
	if body, ok := p.encoded[v]; ok {
		return body, nil
	}
	body, err := write(p.families, v)
	if err == nil && len(p.encoded) < maximumVariants {
		p.encoded[v] = body
	}
	return body, err
}

// write encodes the families in one form.
func write(families []*dto.MetricFamily, v variant) ([]byte, error) {
	var body bytes.Buffer
	var to io.Writer = &body
	if v.zipped {
		to = gzip.NewWriter(&body)
	}
	e := expfmt.NewEncoder(to, v.format)
	for _, f := range families {
		if err := e.Encode(f); err != nil {
			return nil, fmt.Errorf("encode %s: %w", f.GetName(), err)
		}
	}
	for _, end := range []any{e, to} {
		if c, ok := end.(io.Closer); ok {
			if err := c.Close(); err != nil {
				return nil, fmt.Errorf("encode metrics: %w", err)
			}
		}
	}
	return body.Bytes(), nil
}
