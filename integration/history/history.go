package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"
)

// Operation is a request for one block, or the part of a request that concerns
// it.
type Operation struct {
	Client int    `json:"client"`
	Block  int64  `json:"block"`
	Write  bool   `json:"write"` // or it is a read
	Value  uint64 `json:"value"` // that was written or read; 0 is what a new disk holds

	// Lost says that a write was not answered, and may have had an effect.
	Lost bool `json:"lost,omitempty"`

	// Until, if it is not 0, is when a lost write can no longer take effect,
	// ns since the history began.
	Until int64 `json:"until,omitempty"`

	Call   int64 `json:"call"`   // ns since the history began
	Return int64 `json:"return"` // of a lost write it is of no account
}

// end is when an operation ended as far as the check is concerned.
func (o Operation) end() int64 {
	switch {
	case !o.Lost:
		return o.Return
	case o.Until > 0:
		return o.Until
	}
	return math.MaxInt64
}

func (o Operation) String() string {
	switch {
	case o.Lost:
		return fmt.Sprintf("write %s, lost", name(o.Value))
	case o.Write:
		return "write " + name(o.Value)
	}
	return "read " + name(o.Value)
}

// Recorder records what the clients of a load do. It is safe for concurrent
// use.
type Recorder interface {
	// Now is the time in the history, in ns.
	Now() int64

	// Begin is Now for a client that begins its next request.
	Begin(client int) int64

	// End adds the operations of the request that the client began last.
	End(client int, operations ...Operation)
}

// History is operations in any order. It is safe for concurrent use.
type History struct {
	began time.Time

	mu sync.Mutex
	// +checklocks:mu
	operations []Operation
}

// New begins a history.
func New() *History { return &History{began: time.Now()} }

// Now implements [Recorder].
func (h *History) Now() int64 { return int64(time.Since(h.began)) }

// Begin implements [Recorder].
func (h *History) Begin(int) int64 { return h.Now() }

// End implements [Recorder].
func (h *History) End(_ int, operations ...Operation) { h.Add(operations...) }

// Add adds operations, which have ended or are lost.
func (h *History) Add(operations ...Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, operations...)
}

// Operations returns a copy of what was added so far.
func (h *History) Operations() []Operation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Operation(nil), h.operations...)
}

// Save writes the history to a file, an operation a line in JSON.
func (h *History) Save(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	lines := json.NewEncoder(out)
	for _, o := range h.Operations() {
		err = errors.Join(err, lines.Encode(o))
	}
	return errors.Join(err, out.Flush(), file.Close())
}

// Replay reads a history that Save wrote. It can be checked again.
func Replay(path string) (*History, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	h := New()
	lines := json.NewDecoder(file)
	for n := 0; ; n++ {
		var o Operation
		err := lines.Decode(&o)
		if err == io.EOF {
			return h, nil
		}
		if err == nil && o.Return < o.Call && !o.Lost {
			err = errors.New("it ends before it begins")
		}
		if err != nil {
			return nil, fmt.Errorf("%s: operation %d: %w", path, n, err)
		}
		h.Add(o)
	}
}
