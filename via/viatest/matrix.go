package viatest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/viablk/viablk/via"
	"github.com/viablk/viablk/via/hook"
)

// row is a row of the error matrix (VIA 1.0, error handling): an error and what
// it does at each of the three reliability levels. S is the end that posts, R
// the other; the client plays S.
type row struct {
	number   int
	name     string
	variants []variant
}

// variant is a way to meet the error of a row. Its act commits the error on a
// connection over which two messages passed; expect compares the result
// with want, by level. Where that does not fit, check does everything.
type variant struct {
	name  string
	needs Capability
	plan  hook.Plan
	depth int // of the queues, if not the kit's
	act   func(s *errCase)
	want  [3]expectation
	check func(e *env)
}

// expectation is what an error does at one level.
type expectation struct {
	staysConnected bool // both VIs stay connected, and good messages pass

	sender    []via.Status // what S's descriptor may complete with: one error bit, or good
	receiver  []via.Status // the same of the receive that the message meets, or untold
	somewhere via.Status   // at least one of the two carries this bit, if not 0

	// Callbacks beside AsyncConnectionLost. Of a connection that breaks, an end
	// with one here hears nothing else; one with an error bit in a descriptor
	// may hear of the loss; any other hears it, once.
	atSender, atReceiver []via.AsyncCode
}

// Outcomes of a descriptor, beside error bits.
const (
	good   via.Status = 0
	untold via.Status = 1 << 31 // no receive tells of the message
)

// The error bits in the words of the matrix.
const (
	format     = via.StatusFormatError
	protection = via.StatusProtectionError
	length     = via.StatusLengthError
	partial    = via.StatusPartialError
	flushed    = via.StatusFlushed
	transport  = via.StatusTransportError
	rdmaProt   = via.StatusRdmaProtError
	remoteDesc = via.StatusRemoteDescError
)

func can(outcomes ...via.Status) []via.Status      { return outcomes }
func hears(codes ...via.AsyncCode) []via.AsyncCode { return codes }

// matrix lists the rows in order.
func matrix() []row {
	rows := slices.Concat(senderRows(), receiverRows(), wireRows(), deviceRows())
	slices.SortFunc(rows, func(a, b row) int { return a.number - b.number })
	return rows
}

// String is the row's name in tests and skips.
func (r *row) String() string { return fmt.Sprintf("%02d-%s", r.number, r.name) }

// runMatrix runs the cells of the levels that the provider claims.
func (k *kit) runMatrix(t *testing.T) {
	for _, r := range matrix() {
		t.Run(r.String(), func(t *testing.T) {
			watchLeaks(t)
			for i, level := range levels {
				if k.limits.ReliabilityLevels&level != 0 {
					t.Run(levelName(level), func(t *testing.T) { k.runCell(t, &r, i) })
				}
			}
		})
	}
}

// runCell runs the variants of a row at a level.
func (k *kit) runCell(t *testing.T, r *row, i int) {
	k.counts.cells++
	together(len(r.variants), func(n int) {
		v := &r.variants[n]
		t.Run(v.name, func(t *testing.T) {
			plan, needs := v.plan, v.needs
			if needs&NeedsRdmaRead != 0 && levels[i] == unreliable {
				plan, needs = hook.Plan{}, 0 // it does not get as far as the fabric
			}
			e := newEnv(t, k.open, faulty(plan), levels[i])
			name := r.String()
			if k.skips[name+": "+v.name] != "" {
				name += ": " + v.name
			}
			if k.skipped(e, name, needs) {
				k.counts.skip()
				t.Skip(k.skips.reason(name, e.level))
			}
			if v.check != nil {
				v.check(e)
				return
			}
			s := newErrCase(e, v.depth)
			v.act(s)
			for range cellRetries {
				if !s.endCameFirst(&v.want[i]) {
					break
				}
				s = newErrCase(newEnv(t, k.open, faulty(plan), levels[i]), v.depth)
				v.act(s)
			}
			s.expect(&v.want[i])
		})
	})
}

// cellRetries is how often a cell is repeated in which the end of the
// connection overtook the refusal that the sender is to hear of, as it may on a
// busy machine: each comes through a socket of its own.
const cellRetries = 3

// endCameFirst reports whether the sender knows only that the connection ended.
func (s *errCase) endCameFirst(want *expectation) bool {
	if s.bad == nil || want.staysConnected || slices.Contains(want.sender, transport) {
		return false
	}
	s.completion(s.client, s.bad)
	return s.client.seen[s.bad].Status&via.StatusErrorMask == transport
}

// faulty returns a decorator that misbehaves by a plan.
func faulty(plan hook.Plan) func(via.Provider) via.Provider {
	return func(p via.Provider) via.Provider { return hook.Fault(p, plan) }
}
