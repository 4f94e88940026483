package backend

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/viablk/viablk/internal/block"
	"golang.org/x/sys/unix"
)

// action is what a fault does to a request.
type action uint8

const (
	pass   action = iota // nothing
	fail                 // answer an errno, do nothing
	ignore               // answer success, do nothing
	short                // do the first half, answer EIO
	hang                 // do nothing, do not answer
)

// fault is one rule of a broken disk.
type fault struct {
	ops    [operations]bool
	fua    bool // only requests with FUA
	action action
	errno  syscall.Errno // of fail

	first, last uint64  // matching requests it applies to, counted from 1
	rate        float64 // share of these, 0 to 1
	seed        uint64  // decides which
	while       string  // only while this file exists; "" for always
	until       string  // only until this file exists; "" for always

	seen atomic.Uint64 // matching requests so far
}

// parseFaults reads the rules of a broken disk:
//
//	fault:OP=FAULT[@WHEN…][,OP=FAULT…]:SPEC
//
//	OP     read, write, flush, trim, zero, status, prefetch;
//	       fua: every request with FUA; any
//	FAULT  EIO, ENOSPC, … any errno by name: answered, nothing is done
//	       short   the first half is done, EIO is answered: a torn write
//	       hang    nothing is done nor answered until Close or WHEN ends
//	       ignore  nothing is done, success is answered: a lying disk
//	WHEN   @3      the third request that matches OP, @3+ from the third on,
//	       @3-5    the third to the fifth
//	       @1%     one in a hundred, chosen by seed 0; @1%/42 by seed 42
//	       @while=PATH  only while PATH exists
//	       @until=PATH  only until PATH exists
//
// Several WHENs must all hold. Requests are counted over all queues. The first
// rule that applies decides; every rule counts what matches its OP.
func parseFaults(text string) ([]*fault, error) {
	var faults []*fault
	for rule := range strings.SplitSeq(text, ",") {
		f, err := parseFault(rule)
		if err != nil {
			return nil, fmt.Errorf("%w: fault rule %q: %w", ErrUsage, rule, err)
		}
		faults = append(faults, f)
	}
	return faults, nil
}

func parseFault(rule string) (*fault, error) {
	f := &fault{first: 1, last: math.MaxUint64, rate: 1}
	name, rest, _ := strings.Cut(rule, "=")
	parts := strings.Split(rest, "@")
	if err := f.parseOp(name); err != nil {
		return nil, err
	}
	if err := f.parseAction(parts[0]); err != nil {
		return nil, err
	}
	for _, when := range parts[1:] {
		if err := f.parseWhen(when); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *fault) parseOp(name string) error {
	if op, ok := opNames[name]; ok {
		f.ops[op] = true
		return nil
	}
	if name != "fua" && name != "any" {
		return fmt.Errorf("OP is read, write, flush, trim, zero, status, prefetch, fua or any")
	}
	f.fua = name == "fua"
	for op := range f.ops {
		f.ops[op] = true
	}
	return nil
}

func (f *fault) parseAction(text string) error {
	switch text {
	case "short":
		f.action = short
		return nil
	case "hang":
		f.action = hang
		return nil
	case "ignore":
		f.action = ignore
		return nil
	}
	const errnos = 134 // one more than the largest errno of Linux
	for e := syscall.Errno(1); e < errnos; e++ {
		if text == unix.ErrnoName(e) {
			f.action, f.errno = fail, e
			return nil
		}
	}
	return fmt.Errorf("FAULT is an errno such as EIO, or short, hang or ignore")
}

func (f *fault) parseWhen(when string) error {
	if path, ok := strings.CutPrefix(when, "while="); ok && path != "" {
		f.while = path
		return nil
	}
	if path, ok := strings.CutPrefix(when, "until="); ok && path != "" {
		f.until = path
		return nil
	}
	if share, seed, ok := strings.Cut(when, "%"); ok {
		return f.parseRate(share, seed)
	}
	from, to, isRange := strings.Cut(when, "-")
	from, open := strings.CutSuffix(from, "+")
	first, err := strconv.ParseUint(from, 10, 63)
	if err != nil || first == 0 || open && isRange {
		return fmt.Errorf("WHEN is N, N+, N-M, P%%, P%%/SEED, while=PATH or until=PATH")
	}
	f.first, f.last = first, first
	if open {
		f.last = math.MaxUint64
	}
	if isRange {
		if f.last, err = strconv.ParseUint(to, 10, 63); err != nil || f.last < first {
			return fmt.Errorf("range %q is not N-M with M not less than N", when)
		}
	}
	return nil
}

func (f *fault) parseRate(share, seed string) error {
	percent, err := strconv.ParseFloat(share, 64)
	if err != nil || !(percent >= 0 && percent <= 100) {
		return fmt.Errorf("rate %q is not 0%% to 100%%", share+"%")
	}
	f.rate = percent / 100
	if seed == "" {
		return nil
	}
	seed, ok := strings.CutPrefix(seed, "/")
	if f.seed, err = strconv.ParseUint(seed, 10, 64); !ok || err != nil {
		return fmt.Errorf("seed of rate %q is not a number", share+"%"+seed)
	}
	return nil
}

// matches reports whether the rule is about requests like r.
func (f *fault) matches(r *block.Request) bool {
	return f.ops[r.Op] && (!f.fua || r.Flags&block.FUA != 0)
}

// applies counts a request that matches, and reports whether it is hit.
func (f *fault) applies() bool {
	n := f.seen.Add(1)
	return n >= f.first && n <= f.last && f.chosen(n) && f.lasts()
}

// chosen decides by the seed alone whether request n is of the share.
func (f *fault) chosen(n uint64) bool {
	if f.rate == 1 {
		return true
	}
	// The finalizer of splitmix64: all bits of seed and n count.
	z := f.seed*0x9e3779b97f4a7c15 + n*0xd1342543de82ef95
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11)/(1<<53) < f.rate
}

// lasts reports whether the files let the rule apply now.
func (f *fault) lasts() bool {
	return (f.while == "" || exists(f.while)) && (f.until == "" || !exists(f.until))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
