package nbd

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/viablk/viablk/internal/access"
	"github.com/viablk/viablk/internal/block"
)

// ErrUnknownExport is what [Exports.Export] returns, wrapped or not, for a name
// that it does not know.
var ErrUnknownExport = errors.New("unknown export")

// Export is a device under a name.
type Export struct {
	Name        string // at most 4096 bytes of UTF-8 without NUL
	Description string // for people; may be empty
	Device      block.Device
	ReadOnly    bool // refuse writes even if the device takes them
	Default     bool // also answers to the empty name
	Connections int  // at a time; 0: no limit but the server's

	// Rights are the clients of the export; nil admits every client. Others do
	// not see it in a list.
	Rights *access.Rights

	// Reserve gives a client the disk, for reading or for writing too, or returns
	// an error whose text the client gets. It is called for each connection; end
	// ends the connection because another user, named by, preempts it, and may be
	// called from any goroutine. Nil means that the disk has no other users.
	Reserve func(client string, readOnly bool, end func(by string)) (Reservation, error)
}

// errReserved is why a client does not get a disk that others use.
var errReserved = errors.New("not for this client")

// Reservation is the use of a disk by a connection.
type Reservation interface {
	// ReadOnly reports that another user writes: the client only reads.
	ReadOnly() bool

	// BeforeWrite is called before each request that changes the disk. Only the
	// first call may block. With an error the request is not executed.
	BeforeWrite() error

	// InDisk tells since when the oldest request of the connection has been in
	// the disk: a moment after it came there and each second while it stays, and
	// the zero time when none is there any more. It does not block.
	InDisk(since time.Time)

	// Release ends the use. Nothing of the connection is in flight.
	Release()
}

// Exports are what a server offers. Its methods are called by many goroutines
// at once, before a client has proved anything: they neither block nor open
// anything.
type Exports interface {
	// Export returns the export of that name, the default export for "", or an
	// error that is [ErrUnknownExport] for a name without export. The
	// returned export is not changed afterwards.
	Export(name string) (*Export, error)

	// List returns the exports that may be listed.
	List() []Export
}

// ExportTable is the exports of a list that can be replaced as a whole.
type ExportTable struct {
	current atomic.Pointer[exportList]
}

// exportList is the exports at a time. It is immutable.
type exportList struct {
	list   []Export
	byName map[string]*Export // with the default as ""
}

// NewExports returns a table of exports, see [ExportTable.Set].
func NewExports(exports ...Export) (*ExportTable, error) {
	t := new(ExportTable)
	if err := t.Set(exports...); err != nil {
		return nil, err
	}
	return t, nil
}

// Set replaces the exports, or returns an error and changes nothing. Names must
// be valid and distinct, and every device one that the protocol can describe. A
// single export is the default even if it does not say so. Clients keep what
// they have. It is safe for concurrent use with the other methods.
func (t *ExportTable) Set(exports ...Export) error {
	publish, err := t.Prepare(exports...)
	if err == nil {
		publish()
	}
	return err
}

// Prepare checks exports as Set does and changes nothing. The function that it
// returns replaces the exports by them, and cannot fail.
func (t *ExportTable) Prepare(exports ...Export) (publish func(), err error) {
	l, err := newExportList(exports)
	if err != nil {
		return nil, err
	}
	return func() { t.current.Store(l) }, nil
}

func newExportList(exports []Export) (*exportList, error) {
	s := &exportList{
		list:   slices.Clone(exports),
		byName: make(map[string]*Export, len(exports)+1),
	}
	var standard *Export
	for i := range s.list {
		e := &s.list[i]
		if err := e.validate(); err != nil {
			return nil, fmt.Errorf("export %q: %w", e.Name, err)
		}
		if s.byName[e.Name] != nil {
			return nil, fmt.Errorf("export %q: the name is taken by another export", e.Name)
		}
		s.byName[e.Name] = e
		if !e.Default {
			continue
		}
		if standard != nil {
			return nil, fmt.Errorf("export %q: %q is the default export already", e.Name, standard.Name)
		}
		standard = e
	}
	if standard == nil && len(s.list) == 1 {
		standard = &s.list[0]
	}
	switch taken := s.byName[""]; {
	case standard == nil:
	case taken != nil && taken != standard:
		return nil, fmt.Errorf("export %q: the empty name is taken by another export", standard.Name)
	default:
		s.byName[""] = standard
	}
	return s, nil
}

// Export implements [Exports].
func (t *ExportTable) Export(name string) (*Export, error) {
	if e := t.current.Load().byName[name]; e != nil {
		return e, nil
	}
	return nil, ErrUnknownExport
}

// List implements [Exports].
func (t *ExportTable) List() []Export { return slices.Clone(t.current.Load().list) }

// validate reports why the export cannot be served.
func (e *Export) validate() error {
	if err := validName(e.Name, maximumText); err != nil {
		return err
	}
	if len(e.Description) > maximumText || !utf8.ValidString(e.Description) {
		return fmt.Errorf("description is not UTF-8 of at most %d bytes", maximumText)
	}
	if e.Device == nil {
		return errors.New("no device")
	}
	return validInfo(e.Device.Info())
}

// validInfo reports why a device cannot be described in the protocol ("Block
// size constraints"). Zero in a block size stands for the default.
func validInfo(i block.Info) error {
	powerOfTwo := func(n uint32) bool { return n&(n-1) == 0 }
	switch {
	case i.Size < 0:
		return fmt.Errorf("size %d is negative", i.Size)
	case !powerOfTwo(i.MinimumBlock) || i.MinimumBlock > 64<<10:
		return fmt.Errorf("minimum block %d is not a power of two up to 64 KiB", i.MinimumBlock)
	case !powerOfTwo(i.PreferredBlock):
		return fmt.Errorf("preferred block %d is not a power of two", i.PreferredBlock)
	case i.MinimumBlock > 1 && i.Size%int64(i.MinimumBlock) != 0:
		return fmt.Errorf("size %d is not a multiple of the minimum block %d", i.Size, i.MinimumBlock)
	case i.MaximumPayload != 0 && i.MaximumPayload < 1<<20:
		return fmt.Errorf("maximum payload %d is below 1 MiB", i.MaximumPayload)
	}
	return nil
}

// validName reports why s is no export name.
func validName(s string, limit int) error {
	switch {
	case len(s) > limit:
		return fmt.Errorf("export name has %d bytes, more than %d", len(s), limit)
	case !utf8.ValidString(s):
		return errors.New("export name is not UTF-8")
	case strings.IndexByte(s, 0) >= 0:
		return errors.New("export name contains a NUL byte")
	}
	return nil
}

// Describe returns what a client of [Server.ServeConn] has to know of the
// export: the protocol's transmission flags, and sizes.
func (s *Server) Describe(export *Export) (flags uint16, info block.Info) {
	info = export.clientInfo(s.effectiveLimits())
	return transmissionFlags(&info, terms{}), info
}

// transmissionFlags returns what the protocol says of the export. The info is
// that of [Export.clientInfo].
func transmissionFlags(i *block.Info, t terms) uint16 {
	flags := flagHasFlags
	for _, f := range [...]struct {
		feature block.Features
		flag    uint16
	}{
		{block.ReadOnly, flagReadOnly},
		{block.CanFlush, flagSendFlush},
		{block.CanFUA, flagSendFUA},
		{block.Rotational, flagRotational},
		{block.CanTrim, flagSendTrim},
		{block.CanWriteZeroes, flagSendWriteZeroes},
		{block.CanFastZero, flagSendFastZero},
		{block.CanMultiConn, flagCanMultiConn},
		{block.CanPrefetch, flagSendCache},
	} {
		if i.Features&f.feature != 0 {
			flags |= f.flag
		}
	}
	if t.replyMode != simple {
		flags |= flagSendDF
	}
	if t.replyMode == extended && t.contexts {
		flags |= flagStatusPayload
	}
	return flags
}
