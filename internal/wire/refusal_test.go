package wire

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// damage takes the named sample, lets edit change its bytes and repairs the
// checksums unless raw is set.
type damage struct {
	sample string
	want   error
	raw    bool
	edit   func(b []byte) []byte
}

// put overwrites bytes from an offset.
func put(offset int, values ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		copy(b[offset:], values)
		return b
	}
}

// grow appends n bytes.
func grow(n int) func([]byte) []byte {
	return func(b []byte) []byte { return append(b, make([]byte, n)...) }
}

// cut keeps n bytes.
func cut(n int) func([]byte) []byte {
	return func(b []byte) []byte { return b[:n:n] }
}

// both applies edits in order.
func both(edits ...func([]byte) []byte) func([]byte) []byte {
	return func(b []byte) []byte {
		for _, edit := range edits {
			b = edit(b)
		}
		return b
	}
}

var capsuleDamage = []damage{
	{"command-flush", errShortHeader, true, cut(63)},
	{"command-write-pull", errShortMessage, true, cut(MaxHeader - 1)},
	{"command-flush", errHeaderTiny, true, put(headerAtHeaderLength, 63, 0)},
	{"command-flush", errHeaderCRC, true, put(commandAtSlot, 9)},
	{"command-write-pull", errHeaderCRC, true, put(MaxHeader-1, 9)},
	{"command-flush", errOpcode, false, put(0, byte(OpCompareWrite))},
	{"command-flush", errOpcode, false, put(0, 0)},
	{"command-flush", errOpcode, false, put(0, 0x81)},
	{"command-flush", errOtherMessage, false, put(0, byte(OpReply))},
	{"command-flush", errReservedFlags, false, put(commandAtFlags, 64)},
	{"command-flush", errCommandMode, false, put(commandAtMode, byte(ModeInline))},
	{"command-read-inline", errCommandMode, false, put(commandAtMode, byte(ModePull))},
	{"command-read-inline", errCommandMode, false, put(commandAtMode, 255)},
	{"command-write-pull", errCommandMode, false, put(commandAtMode, 2)}, // reserved
	{"command-write-inline", errCommandMode, false, put(commandAtMode, byte(ModePlace))},
	{"command-flush", errFlushRange, false, put(commandAtOffset, 1)},
	{"command-flush", errFlushRange, false, put(commandAtLength, 1)},
	{"command-write-pull", errLengthLimit, false, put(commandAtLength, 1, 0, 0, 4)},
	{"command-read-inline", errInlineLimit, false, put(commandAtLength, 1, 0, 16, 0)},
	{"command-write-inline", errInlineLength, false, put(commandAtInlineLength, 31)},
	{"command-write-pull", errInlineLength, false, put(commandAtInlineLength, 1)},
	{"command-write-inline", errMessageLength, false, cut(HeaderSize + 31)},
	{"command-flush", errMessageLength, false, grow(1)},
	{"command-read-inline", errDigestUnasked, false, put(commandAtDataCRC, 1)},
	{"command-write-pull", errDigestUnasked, false, put(commandAtDataCRC, 1)},
	{"command-flush", errDigestNoData, false, put(commandAtFlags, byte(FlagDataDigest))},
	{"command-write-zeroes", errDigestNoData, false, put(commandAtFlags, byte(FlagDataDigest))},
	{"command-block-status", errDigestUnasked, false, put(commandAtDataCRC, 1)},
	{"command-flush", errSegmentsUnfit, false, put(commandAtNumSegments, 1)},
	{"command-read-inline", errSegmentReserved, false, put(commandAtSegmentHandle, 1)},
	{"command-read-inline", errHeaderLength, true, func(b []byte) []byte {
		b = append(b, make([]byte, SegmentSize)...)
		b[headerAtHeaderLength] = HeaderSize + SegmentSize
		crc := headerCRC((*[HeaderSize]byte)(b), b[HeaderSize:])
		le.PutUint32(b[headerAtHeaderCRC:], crc)
		return b
	}},
	{
		"command-write-pull", errSegmentsUnfit, false,
		both(cut(HeaderSize), put(commandAtNumSegments, 0)),
	},
	{
		"command-write-pull", errSegmentCount, false,
		both(grow(SegmentSize), put(commandAtNumSegments, 5)),
	},
	{"command-read-place", errMessageLength, false, put(commandAtNumSegments, 1)},
	{"command-read-place", errHeaderLength, true, func(b []byte) []byte {
		b[commandAtNumSegments] = 1
		crc := headerCRC((*[HeaderSize]byte)(b), b[HeaderSize:])
		le.PutUint32(b[headerAtHeaderCRC:], crc)
		return b
	}},
	{"command-read-place", errSegmentRange, false, put(commandAtSegmentLength, 0, 0, 0)},
	{"command-read-place", errSegmentRange, false, put(HeaderSize+segmentAtAddr,
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)},
	{"command-read-place", errSegmentSum, false, put(commandAtSegmentLength, 1)},
	{"reply-error", errShortHeader, true, cut(1)},
	{"reply-error", errHeaderCRC, true, put(replyAtSlot, 9)},
	{"reply-error", errHeaderTiny, true, put(headerAtHeaderLength, 0)},
	{"reply-error", errOtherMessage, false, put(0, byte(OpRead))},
	{"reply-error", errOpcode, false, put(0, 0x81)},
	{"reply-ok-inline", errHeaderLength, true, func(b []byte) []byte {
		b[headerAtHeaderLength] = HeaderSize + 32
		crc := headerCRC((*[HeaderSize]byte)(b), b[HeaderSize:])
		le.PutUint32(b[headerAtHeaderCRC:], crc)
		return b
	}},
	{"reply-error", errReserved, false, put(replyAtReserved, 1)},
	{"reply-error", errReserved, false, put(replyAtReserved+9, 1)},
	{"reply-error", errReservedFlags, false, put(replyAtFlags, 32)},
	{"reply-error", errUnknownStatus, false, put(replyAtStatus, 9)},
	{"reply-error", errReplyRetryFlags, false, put(replyAtFlags, byte(ReplyRetry|ReplyDNR))},
	{"reply-error", errReplyPayload, false, put(replyAtLength, 1)},
	{"reply-error", errReplyPayload, false, put(replyAtInlineLength, 1)},
	{"reply-error", errReplyPayload, false, put(replyAtFlags, byte(ReplyRetry|ReplyDataDigest))},
	{"reply-error", errReplyRetryOK, false, put(replyAtStatus, 0)},
	{"reply-ok-inline", errReplyRetryOK, false, put(replyAtFlags, byte(ReplyDNR|ReplyDataDigest))},
	{"reply-ok-inline", errDigestUnasked, false, put(replyAtFlags, 0)},
	{"reply-ok-inline", errReplyInline, false, put(replyAtInlineLength, 31)},
	{"reply-ok-inline", errInlineLimit, false, put(replyAtInlineLength, 1, 0, 16)},
	{"reply-ok-inline", errMessageLength, false, grow(1)},
	{"reply-ok-inline", errMessageLength, false, cut(HeaderSize)},
}

var controlDamage = []damage{
	{"logout", errShortHeader, true, cut(10)},
	{"logout", errHeaderCRC, true, put(controlHeaderAtID, 9)},
	{"logout", errBodyCRC, true, put(logoutAtFlags, 0)},
	{"logout", errMagic, true, func(b []byte) []byte {
		b[controlHeaderAtMagic] = 'V'
		crc := headerCRC((*[HeaderSize]byte)(b), nil)
		le.PutUint32(b[headerAtHeaderCRC:], crc)
		return b
	}},
	{"logout", errHeaderLength, true, func(b []byte) []byte {
		b[headerAtHeaderLength] = HeaderSize + 4
		crc := headerCRC((*[HeaderSize]byte)(b), b[HeaderSize:])
		le.PutUint32(b[headerAtHeaderCRC:], crc)
		return b
	}},
	{"logout", errShortMessage, true, cut(logoutSize - 1)},
	{"logout", errMessageLength, true, grow(1)},
	{"logout", errOpcode, false, put(0, 0x7f)},
	{"logout", errOpcode, false, put(0, 0x81)},
	{"logout", errOtherMessage, false, put(0, byte(OpAbort))},
	{"logout", errOtherMessage, false, put(0, byte(OpRead))},
	{"logout", errReservedFlags, false, put(controlHeaderAtFlags, 1)},
	{"logout", errReserved, false, put(controlHeaderAtReserved, 1)},
	{"logout", errReserved, false, put(controlHeaderAtHeaderLength-1, 1)},
	{"logout", errRequestStatus, false, put(controlHeaderAtStatus, 1)},
	{"event-ack", errRequestStatus, false, put(controlHeaderAtStatus, 1)},
	{"event-goaway", errRequestStatus, false, put(controlHeaderAtStatus, 1)},
	{"keepalive-ack", errRequestStatus, false, put(controlHeaderAtStatus, 1)},
	{"logout-response", errReservedFlags, false, put(logoutResponseAtFlags, 2)},
	{"logout-response", errReserved, false, put(logoutResponseAtReserved, 1)},
	{"logout-response", errUnknownStatus, false, put(controlHeaderAtStatus, 9)},
	{"logout", errBodyShort, false, cut(logoutSize - 1)},
	{"logout", errBodyLength, false, grow(1)},
	{"discover-response", errControlLimit, false, grow(MaxControlSize)},
	{"logout", errReservedFlags, false, put(logoutAtFlags, 2)},
	{"logout", errReserved, false, put(logoutSize-1, 1)},

	{"auth-hello", errAuthVersion, false, put(authAtVersion, AuthVersion+1)},
	{"auth-hello", errAuthKind, false, put(authAtKind, 0)},
	{"auth-hello", errAuthKind, false, put(authAtKind, byte(authKindEnd))},
	{"auth-hello", errReservedFlags, false, put(authAtFlags, 2)},
	{"auth-hello", errReserved, false, put(authAtReserved, 1)},
	{"auth-hello", errReserved, false, put(authAtData-1, 1)},
	{"auth-hello", errAuthJoin, false, put(authAtConn, 1)},
	{"auth-hello", errAuthJoin, false, put(authAtProof, 1)},
	{"auth-hello", errAuthJoin, false, put(authAtPathEpoch, 2)},
	{"auth-join", errAuthJoin, false, put(authAtPathEpoch, 2)},
	{"auth-hello", errAuthAnswer, false, put(authAtSession, 1)},
	{"auth-hello", errAuthAnswer, false, put(authAtRetryAfter, 1)},
	{"auth-join", errAuthAnswer, false, put(authAtRetryAfter, 1)},
	{"auth-hello", errRequestStatus, false, put(controlHeaderAtStatus, 1)},
	{"auth-response-continue", errChoice, false, put(authAtMethods, 4)},
	{"auth-response-continue", errChoice, false, put(authAtSeals, 2)},
	{
		"auth-hello", errAuthData, false,
		both(grow(MaxAuthData), put(authAtDataLength, 1, (MaxAuthData+1)>>8)),
	},
	{"auth-hello", errBodyShort, false, put(authAtDataLength, 13)},
	{"auth-hello", errBodyLength, false, put(authAtDataLength, 11)},
	{"auth-hello", errBodyShort, false, cut(authSize - 1)},

	{"login-request", errVersionOrder, false, put(loginRequestAtMinVersion, 0)},
	{"login-request", errVersionOrder, false, put(loginRequestAtMinVersion, Version+1)},
	{"login-request", errVersionRange, false, put(loginRequestAtMinVersion, Version+1, 0, Version+2)},
	{"login-request", errVersionRange, false, put(loginRequestAtMinVersion, 1, 0, Version-1)},
	{"login-request", errBodyLength, false, grow(4)},
	{"login-request", errReserved, false, put(loginRequestAtReserved, 1)},
	{"login-request", errRole, false, put(loginRequestAtRole, 0)},
	{"login-request", errRole, false, put(loginRequestAtRole, byte(roleEnd))},
	{
		"login-request", errSessionZero, false,
		put(loginRequestAtSessionID, make([]byte, 16)...),
	},
	{"login-request", errConn, false, put(loginRequestAtRole, byte(RoleControl))},
	{"login-request", errConn, false, put(loginRequestAtRole, byte(RoleDiscover))},
	{"login-request", errConn, false, put(loginRequestAtConn, 0)},
	{"login-request", errConn, false, put(loginRequestAtConn, 6)},
	{"login-request", errConn, false, put(loginRequestAtConn, 11)},
	{"login-request", errConnsLimit, false, put(loginRequestAtConns, 1, 4)},
	{"login-request", errDepthLimit, false, put(loginRequestAtDepth, 1, 4)},
	{"login-request", errInlineLimit, false, put(loginRequestAtInlineMax, 1, 0, 16)},
	{"login-request", errMaxIOLimit, false, put(loginRequestAtMaxIO, 1, 0, 0, 4)},

	{"login-response", errVersionChoice, false, put(loginResponseAtVersion, Version+1)},
	{"login-response", errVersionChoice, false, put(loginResponseAtVersion, 0)},
	{"login-response", errChoice, false, put(loginResponseAtDigest, 2)},
	{"login-response", errChoice, false, put(loginResponseAtSeal, 2)},
	{"login-response", errChoice, false, put(loginResponseAtDataModes, 1)},
	{"login-response", errChoice, false, put(loginResponseAtDataModes, 1<<2)}, // reserved
	{"login-response", errChoice, false, put(loginResponseAtAuthMethod, 4)},
	{"login-response", errChoice, false, put(loginResponseAtFeatures, 8)},
	{
		"login-response", errPortalState, false,
		put(loginResponseAtPortalState, byte(portalEnd)),
	},
	{"login-response", errReserved, false, put(loginResponseAtReserved, 1)},
	{"login-response", errReserved, false, put(loginResponseAtSlotBase-1, 1)},
	{"login-response", errReserved, false, put(loginResponseAtReserved2, 1)},
	{"login-response", errReserved, false, put(loginResponseAtText-1, 1)},
	{"login-response", errSlotRange, false, put(loginResponseAtSlotBase, 0x80, 0xff)},
	{"login-response", errInlineLimit, false, put(loginResponseAtInlineMax, 1, 0, 16)},
	{"login-response", errMaxIOLimit, false, put(loginResponseAtMaxIO, 1, 0, 0, 4)},
	{"login-response", errDepthLimit, false, put(loginResponseAtCredits, 1, 4)},
	{"login-response", errConnsLimit, false, put(loginResponseAtConns, 1, 4)},
	{"login-response", errBodyLength, false, grow(1)},
	{"login-response", errBodyShort, false, put(loginResponseAtTextLength, 1)},
	{"login-response-refused", errBodyLength, false, grow(1)},
	{
		"login-response-refused", errTextLimit, false,
		both(grow(200), put(loginResponseAtTextLength, 129)),
	},
	{"login-response-refused", errTextBytes, false, put(loginResponseAtText, 0xff)},

	{"open-request", errOpenMode, false, put(openRequestAtMode, 0)},
	{"open-request", errOpenMode, false, put(openRequestAtMode, byte(openEnd))},
	{"open-request", errReservedFlags, false, put(openRequestAtFlags, 4)},
	{
		"open-request", errNameLimit, false,
		both(grow(MaxName), put(openRequestAtNameLength, 1, 16)),
	},
	{"open-request", errNameBytes, false, put(openRequestAtName, 0)},
	{"open-request", errNameBytes, false, put(openRequestAtName, 0xc0)},
	{"open-request", errBodyShort, false, put(openRequestAtNameLength, 200)},
	{"open-request", errBodyLength, false, put(openRequestAtNameLength, 1)},

	{"open-response", errReserved, false, put(openResponseAtReserved, 1)},
	{"open-response", errReserved, false, put(openResponseAtGeneration-1, 1)},
	{"open-response", errExportSize, false, put(openResponseAtSize+7, 0x80)},
	{"open-response", errExportBlock, false, put(openResponseAtMinimumBlock, 0, 0)},
	{"open-response", errExportBlock, false, put(openResponseAtMinimumBlock, 1)},
	{"open-response", errExportBlock, false, put(openResponseAtPreferredBlock, 1)},
	{"open-response", errExportBlock, false, put(openResponseAtPreferredBlock, 0, 1)},
	{
		"open-response", errTextLimit, false,
		both(grow(2000), put(openResponseAtDescriptionLength, 1, 4)),
	},

	{"close-request", errReserved, false, put(closeRequestAtReserved, 1)},
	{"close-response", errBodyLength, false, grow(1)},
	{"discover-request", errControlLimit, false, put(discoverRequestAtMaxMessage, 1, 32)},
	{"discover-request", errBodyShort, false, cut(HeaderSize)},
	{"discover-response", errReserved, false, put(discoverResponseAtReserved, 1)},
	{"discover-response", errBodyShort, false, put(discoverResponseAtCount, 255, 255)},
	{"discover-response", errBodyShort, false, put(discoverResponseAtCount, 3)},
	{"discover-response", errBodyLength, false, put(discoverResponseAtCount, 1)},
	{
		"discover-response", errEntryKind, false,
		put(discoverResponseSize+exportEntryAtKind, byte(entryEnd)),
	},
	{
		"discover-response", errReservedFlags, false,
		put(discoverResponseSize+exportEntryAtFlags, 2),
	},
	{
		"discover-response", errPortalState, false,
		put(discoverResponseSize+exportEntryAtState, byte(portalEnd)),
	},
	{
		"discover-response", errReserved, false,
		put(discoverResponseSize+exportEntryAtReserved, 1),
	},
	{
		"discover-response", errExportSize, false,
		put(discoverResponseSize+exportEntryAtSize+7, 0x80),
	},

	{"event-resize", errEventKind, false, put(eventAtKind, 0)},
	{"event-resize", errEventKind, false, put(eventAtKind, byte(eventEnd))},
	{"event-resize", errPortalState, false, put(eventAtPortalState, byte(portalEnd))},
	{"event-resize", errReserved, false, put(eventAtReserved, 1)},
	{"event-resize", errExportSize, false, put(eventAtSize+7, 0x80)},
	{"event-ack", errEventKind, false, put(eventAckAtKind, 0)},
	{"event-ack", errReserved, false, put(eventAckAtReserved, 1)},
	{"abort", errReserved, false, put(abortAtReserved, 1)},
	{"abort-response", errAbortOutcome, false, put(abortResponseAtOutcome, 0)},
	{
		"abort-response", errAbortOutcome, false,
		put(abortResponseAtOutcome, byte(abortEnd)),
	},
	{"abort-response", errReserved, false, put(abortResponseAtReserved, 1)},

	{"fence", errReservedFlags, false, put(fenceAtFlags, 2)},
	{"fence", errReserved, false, put(fenceAtReserved, 1)},
	{"fence", errFenceCursor, false, put(fenceAtCursor, 0, 0, 1)},
	{"fence", errControlLimit, false, put(fenceAtMaxMessage, 1, 32)},
	{"fence-response", errReserved, false, put(fenceResponseAtReserved, 1)},
	{"fence-response", errBodyShort, false, put(fenceResponseAtCount, 4)},
	{"fence-response", errBodyLength, false, put(fenceResponseAtCount, 2)},
	{
		"fence-response", errFenceOrder, false,
		put(fenceResponseSize+fenceEntrySize+fenceEntryAtSlot, 0),
	},
	{"fence-response", errFenceCursor, false, put(fenceResponseAtNext, 43, 1)},
	{"fence-response", errFenceCursor, false, put(fenceResponseAtNext, 0, 0, 1)},
	{
		"fence-response", errReservedFlags, false,
		put(fenceResponseSize+fenceEntryAtFlags, 2),
	},
	{
		"fence-response", errReserved, false,
		put(fenceResponseSize+fenceEntryAtReserved+2, 1),
	},
	{
		"fence-response", errUnknownStatus, false,
		put(fenceResponseSize+fenceEntryAtStatus, 9),
	},
	{
		"fence-response", errFenceStatus, false,
		put(fenceResponseSize+fenceEntryAtFlags, 0),
	},

	{"refused", errRefusedOK, false, put(controlHeaderAtStatus, 0)},
	{"refused", errReserved, false, put(refusedAtReserved, 1)},
	{"refused", errTextBytes, false, put(refusedAtText, 0x80)},
}

// Every rule refuses what breaks it, and no rule is without a message that
// breaks it.
func TestEveryRefusal(t *testing.T) {
	byName := map[string]sample{}
	for _, s := range samples() {
		byName[s.name] = s
	}
	hit := map[error]bool{}
	for _, d := range append(capsuleDamage, controlDamage...) {
		s, ok := byName[d.sample]
		if !ok {
			t.Fatalf("no sample %q", d.sample)
		}
		b := d.edit(mustEncode(s.msg))
		if !d.raw {
			repair(b)
		}
		err := s.fresh().Decode(b)
		if err != d.want {
			t.Errorf("%s: %v, want %v", d.sample, err, d.want)
		}
		hit[err] = true
	}
	for _, err := range encodeRefusals(t) {
		hit[err] = true
	}
	_, err := CheckExtents(nil, 1)
	hit[err] = true
	rules := map[string]bool{}
	for err := range hit {
		var r *Refusal
		if errors.As(err, &r) {
			rules[r.Rule] = true
		}
	}
	for _, r := range sourceRefusals(t) {
		if !rules[r.rule] {
			t.Errorf("no message is refused because %q", r.rule)
		}
	}
}

// encodeRefusals breaks the rules of encoders.
func encodeRefusals(t *testing.T) (errs []error) {
	long := strings.Repeat("x", MaxName+1)
	for _, c := range []struct {
		msg  Message
		size int
		want error
	}{
		{&OpenRequest{Name: long}, MaxControlSize, errNameLimit},
		{&OpenRequest{Name: "a\x00b"}, MaxControlSize, errNameBytes},
		{&OpenRequest{Name: "a\xffb"}, MaxControlSize, errNameBytes},
		{&OpenResponse{Name: long}, MaxControlSize, errNameLimit},
		{&Event{Name: long}, MaxControlSize, errNameLimit},
		{
			&DiscoverResponse{Entries: []ExportEntry{{Name: long}}}, MaxControlSize,
			errNameLimit,
		},
		{
			&DiscoverResponse{Entries: make([]ExportEntry, 1000)}, 1 << 20,
			errControlLimit,
		},
		{
			&FenceResponse{Entries: make([]FenceEntry, 1000)}, 1 << 20,
			errControlLimit,
		},
	} {
		_, err := c.msg.Encode(make([]byte, c.size))
		if err != c.want {
			t.Errorf("%T: %v, want %v", c.msg, err, c.want)
		}
		errs = append(errs, err)
	}
	for _, s := range controlSamples() {
		n := len(mustEncode(s.msg))
		_, err := s.msg.Encode(make([]byte, n-1))
		if err != errShortBuffer {
			t.Errorf("%s into a short buffer: %v", s.name, err)
		}
		errs = append(errs, err)
	}
	return errs
}

// sourceRefusal is a call of refusal in the package's sources.
type sourceRefusal struct{ class, rule string }

func sourceRefusals(t *testing.T) (found []sourceRefusal) {
	t.Helper()
	_, files := parseSources(t)
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.Ident); !ok || f.Name != "refusal" {
				return true
			}
			rule, err := strconv.Unquote(call.Args[1].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			class := call.Args[0].(*ast.Ident).Name
			found = append(found, sourceRefusal{class, rule})
			return true
		})
	}
	if len(found) < 40 {
		t.Fatalf("only %d refusals found in the sources", len(found))
	}
	return found
}

// parseSources parses the package without its tests.
func parseSources(t *testing.T) (*token.FileSet, []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return fset, files
}

// The classes tell the cases apart that a receiver treats differently.
func TestRefusalClasses(t *testing.T) {
	classes := []error{
		ErrShort, ErrCorrupt, ErrMalformed, ErrLimit, ErrVersion,
		ErrUnknownOpcode,
	}
	for _, err := range []struct{ err, class error }{
		{errShortHeader, ErrShort},
		{errHeaderCRC, ErrCorrupt},
		{errReserved, ErrMalformed},
		{errNameLimit, ErrLimit},
		{errVersionRange, ErrVersion},
		{errOpcode, ErrUnknownOpcode},
	} {
		for _, class := range classes {
			if errors.Is(err.err, class) != (class == err.class) {
				t.Errorf("%v is of class %v", err.err, class)
			}
		}
	}
	want := "corrupt message: wrong header checksum"
	if got := errHeaderCRC.Error(); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}
