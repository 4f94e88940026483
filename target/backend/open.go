package backend

import (
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/viablk/viablk/internal/block"
)

// Options are what holds for a disk whatever its specification says.
type Options struct {
	// ReadOnly refuses everything that changes the disk, as readonly=1 does.
	ReadOnly bool

	// Workers bounds the threads that run blocking operations of one disk. 0
	// means [block.DefaultWorkers].
	Workers int

	// LockWait is how long to wait for a backing file that another process has
	// locked, such as one that is still exiting. 0 means not to wait.
	LockWait time.Duration

	// Held, if not nil, are the files, devices and memory that the process has
	// open, and what it got of the process before.
	Held *Held

	// Export is the name of the disk in the process, by which Held knows memory.
	Export string

	// StateFolder is where the identities of disks are kept that have no
	// extended attributes. "" means that such a disk cannot be opened for
	// writing, unless with identity=0.
	StateFolder string

	// NBD parses the specification of a disk of an NBD server: a URI, or
	// run:[COMMAND …]. Nil: there are none.
	NBD func(spec string) (Opener, error)

	// Log gets what a person should know of a disk. Nil discards it.
	Log *slog.Logger
}

// depthOfSpec bounds how many wrappers a specification nests.
const depthOfSpec = 16

// An Opener opens the disk of a specification that was parsed. The caller calls
// it at most once: the disk has what it was parsed into.
type Opener func(Options) (block.Device, error)

// Open opens the disk that spec describes; see the package documentation. A
// spec that begins with "/", "./" or "../" is a file. Errors wrap [ErrUsage],
// [ErrLocked], [fs.ErrNotExist] or [fs.ErrPermission] where these say what is
// wrong.
func Open(spec string, options Options) (block.Device, error) {
	open, err := Parse(spec, options.NBD)
	if err != nil {
		return nil, err
	}
	return open(options)
}

// Parse reads the specification of a disk, and neither opens nor makes
// anything. nbd is that of [Options]. The error wraps [ErrUsage].
func Parse(spec string, nbd func(spec string) (Opener, error)) (Opener, error) {
	return parse(spec, nbd, 0)
}

// parse reads spec, which nested wrappers surround.
func parse(spec string, nbd func(spec string) (Opener, error), nested int) (Opener, error) {
	if nested > depthOfSpec {
		return nil, fmt.Errorf("%w: more than %d nested disks", ErrUsage, depthOfSpec)
	}
	if strings.HasPrefix(spec, "/") || strings.HasPrefix(spec, "./") || strings.HasPrefix(spec, "../") {
		spec = "file:" + spec
	}
	scheme, rest, found := strings.Cut(spec, ":")
	if !found {
		return nil, fmt.Errorf("%w: %q names no kind of disk: there are %s", ErrUsage, spec, schemeList())
	}
	switch scheme {
	case "memory", "null":
		return parseSized(scheme, rest)
	case "file":
		return parseFile(rest)
	case "mmap":
		return parseMap(rest)
	case "cow":
		return parseCow(rest)
	case "crc":
		return parseCrc(rest, nbd, nested)
	case "delay", "fault", "volatile":
		return parseWrapper(scheme, rest, nbd, nested)
	case "rbd":
		return parseRBD(rest)
	case "nbd", "nbds", "nbd+unix", "nbds+unix", "nbd+vsock", "nbds+vsock", "run":
		if nbd != nil {
			return nbd(spec)
		}
	}
	return nil, fmt.Errorf("%w: unknown kind of disk %q: there are %s", ErrUsage, scheme, schemeList())
}

// parseSized reads SIZE[?readonly=1].
func parseSized(scheme, rest string) (Opener, error) {
	body, query, err := splitQuery(scheme, rest)
	if err != nil {
		return nil, err
	}
	size, err := ParseSize(body)
	if err != nil {
		return nil, err
	}
	if err := checkSize(fmt.Sprintf("%s:%s", scheme, body), size); err != nil {
		return nil, err
	}
	if scheme == "memory" && size != int64(int(size)) {
		return nil, fmt.Errorf("%w: %d bytes are more than this machine can address", ErrUsage, size)
	}
	readOnly, err := query.flag("readonly")
	if err != nil {
		return nil, err
	}
	return func(options Options) (block.Device, error) {
		if scheme == "null" {
			return openNull(size, readOnly || options.ReadOnly)
		}
		warnOfSize(size, machineMemory(), options.Log)
		return openMemory(size, readOnly || options.ReadOnly, options.Export, options.Held)
	}, nil
}

// checkSize refuses sizes that no disk has.
func checkSize(what string, size int64) error {
	switch {
	case size == 0:
		return fmt.Errorf("%w: %s is empty: a disk has at least 512 bytes", ErrUsage, what)
	case size%512 != 0:
		return fmt.Errorf("%w: %s has %d bytes, which is not a multiple of 512: make it %d",
			ErrUsage, what, size, (size+511)&^511)
	}
	return nil
}

// parseWrapper reads RULES:SPEC, or SPEC of volatile:.
func parseWrapper(scheme, rest string, nbd func(spec string) (Opener, error), nested int) (Opener, error) {
	spec := rest
	wrap := func(inner block.Device) block.Device { return NewVolatile(inner) }
	if scheme != "volatile" {
		text, inner, found := strings.Cut(rest, ":")
		if !found {
			return nil, fmt.Errorf("%w: %s:%s wraps no disk: write %s:RULES:DISK", ErrUsage, scheme, rest, scheme)
		}
		rules, err := parseRules(scheme, text)
		if err != nil {
			return nil, err
		}
		spec, wrap = inner, func(inner block.Device) block.Device { return newWrapper(inner, rules) }
	}
	open, err := parse(spec, nbd, nested+1)
	if err != nil {
		return nil, err
	}
	return func(options Options) (block.Device, error) {
		inner, err := open(options)
		if err != nil {
			return nil, err
		}
		return wrap(inner), nil
	}, nil
}

// parseRules reads the rules of delay: or fault:.
func parseRules(scheme, text string) (rules wrapperRules, err error) {
	if scheme == "delay" {
		rules.delays, err = parseDelays(text)
	} else {
		rules.faults, err = parseFaults(text)
	}
	return rules, err
}

// query is the options of a specification.
type query struct {
	scheme string
	values url.Values
}

// splitQuery divides BODY[?KEY=VALUE&…], in which BODY is percent-encoded, and
// refuses keys that the kind does not have.
func splitQuery(scheme, rest string) (body string, q query, err error) {
	known := optionsOf(scheme)
	body, text, _ := strings.Cut(rest, "?")
	unescaped, err := url.PathUnescape(body)
	if err != nil {
		return "", q, fmt.Errorf("%w: %s:%s: %w: write %% as %%25 and ? as %%3F", ErrUsage, scheme, body, err)
	}
	values, err := url.ParseQuery(text)
	if err != nil {
		return "", q, fmt.Errorf("%w: options of %s:%s: %w", ErrUsage, scheme, body, err)
	}
	for key, given := range values {
		if !slices.Contains(known, key) {
			return "", q, fmt.Errorf("%w: %s: has no option %q: there are %s",
				ErrUsage, scheme, key, strings.Join(known, ", "))
		}
		if len(given) > 1 {
			return "", q, fmt.Errorf("%w: option %s of %s: is given twice", ErrUsage, key, scheme)
		}
	}
	return unescaped, query{scheme, values}, nil
}

// flag returns a switch, off if it is not given.
func (q query) flag(key string) (bool, error) {
	if !q.values.Has(key) {
		return false, nil
	}
	switch value := strings.ToLower(q.values.Get(key)); value {
	case "", "1", "true", "yes", "on":
		return true, nil
	case "0", "false", "no", "off":
		return false, nil
	default:
		return false, fmt.Errorf("%w: option %s of %s: is %q, not 0 or 1", ErrUsage, key, q.scheme, value)
	}
}
