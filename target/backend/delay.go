package backend

import (
	"fmt"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// opNames are the operations of the rules of wrappers. "fua" is every operation
// with FUA, "any" is every operation.
var opNames = map[string]block.Op{
	"read":  block.Read,
	"write": block.Write,
	"flush": block.Flush,
	"trim":  block.Trim,
	"zero":  block.WriteZeroes,

	"status":   block.Status,
	"prefetch": block.Prefetch,
}

// operations is the length of a table by block.Op.
const operations = int(block.Prefetch) + 1

// longestDelay keeps a slip of the unit from making a disk useless.
const longestDelay = time.Hour

// parseDelays reads the rules of a slow disk:
//
//	delay:OP=TIME[,OP=TIME…]:SPEC
//
// OP is read, write, flush, trim, zero, status, prefetch or any; TIME is a Go
// duration such as 5ms or 1.5s. Every request waits for its TIME before it
// reaches SPEC, each on its own, however many there are. The disk has begun
// what waits: closing a queue waits for it.
func parseDelays(text string) (delays [operations]time.Duration, err error) {
	for rule := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(rule, "=")
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 || d > longestDelay {
			return delays, fmt.Errorf("%w: delay rule %q: write OP=TIME with a TIME such as 5ms, up to %v",
				ErrUsage, rule, longestDelay)
		}
		if name == "any" {
			for op := range delays {
				delays[op] = d
			}
			continue
		}
		op, ok := opNames[name]
		if !ok {
			return delays, fmt.Errorf("%w: delay rule %q: OP is read, write, flush, trim, zero, status, prefetch or any", ErrUsage, rule)
		}
		delays[op] = d
	}
	return delays, nil
}
