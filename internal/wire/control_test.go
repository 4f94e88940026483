package wire

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestControlEncodeAllocatesNothing(t *testing.T) {
	buf := make([]byte, MaxControlSize)
	for _, s := range controlSamples() {
		n := testing.AllocsPerRun(100, func() {
			if _, err := s.msg.Encode(buf); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: encoding allocates %v times", s.name, n)
		}
	}
}

// KeepAlives, aborts and fences run beside the data path.
func TestControlDecodeAllocatesNothingWithoutStrings(t *testing.T) {
	for _, s := range controlSamples() {
		switch s.name {
		case "keepalive", "keepalive-ack", "abort", "abort-response", "fence",
			"fence-response", "event-ack", "close-request", "logout":
		default:
			continue
		}
		b, m := mustEncode(s.msg), s.fresh()
		if err := m.Decode(b); err != nil {
			t.Fatal(err)
		}
		n := testing.AllocsPerRun(100, func() {
			if err := m.Decode(b); err != nil {
				t.Fatal(err)
			}
			if _, err := PeekControl(b); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: decoding allocates %v times", s.name, n)
		}
	}
}

// The receiver of an unknown request can refuse it by name.
func TestUnknownRequestCanBeRefused(t *testing.T) {
	b := mustEncode(&Logout{ID: 7, PathEpoch: 8})
	b[0] = 0x7e
	repair(b)
	header, err := PeekControl(b)
	if !errors.Is(err, ErrUnknownOpcode) {
		t.Fatalf("PeekControl: %v", err)
	}
	if header != (ControlHeader{Opcode: 0x7e, ID: 7, PathEpoch: 8}) {
		t.Fatalf("header %+v", header)
	}
	answer := Refused{header.ID, header.PathEpoch, StatusNotSupported, header.Opcode, ""}
	var got Refused
	if err := got.Decode(mustEncode(&answer)); err != nil || got != answer {
		t.Fatalf("refusal %+v, %v", got, err)
	}
	if _, err := PeekControl(mustEncode(capsuleSamples()[0].msg)); err != errOtherMessage {
		t.Errorf("PeekControl of a command: %v", err)
	}
}

// The login of a later version is longer; its range decides.
func TestLoginOfALaterVersion(t *testing.T) {
	var request LoginRequest
	for _, s := range controlSamples() {
		if m, ok := s.msg.(*LoginRequest); ok {
			request = *m
		}
	}
	request.MaxVersion = Version + 1
	request.Features |= 1 << 31
	request.DataModes |= 1 << 15
	b := append(mustEncode(&request), 1, 2, 3, 4)
	repair(b)
	var got LoginRequest
	if err := got.Decode(b); err != nil || got != request {
		t.Fatalf("a range that includes ours: %+v, %v", got, err)
	}
	request.MinVersion = Version + 1
	b = append(mustEncode(&request), 1, 2, 3, 4)
	repair(b)
	if err := got.Decode(b); !errors.Is(err, ErrVersion) || got != request {
		t.Fatalf("a range above ours: %+v, %v", got, err)
	}

	response := LoginResponse{
		ID: 1, Version: Version + 1, Status: StatusVersion,
		Reason: ReasonVersion, Text: "speaks 2 only",
	}
	b = append(mustEncode(&response), 1, 2, 3, 4)
	repair(b)
	var answer LoginResponse
	if err := answer.Decode(b); err != nil || answer != response {
		t.Fatalf("a refusal by a later version: %+v, %v", answer, err)
	}
	response.Status = StatusOK
	if err := answer.Decode(mustEncode(&response)); !errors.Is(err, ErrVersion) {
		t.Fatalf("a choice above ours: %v", err)
	}
}

// A reply that continues the login is checked like one that ends it.
func TestLoginContinues(t *testing.T) {
	m := LoginResponse{Version: Version, Status: StatusContinue, AuthMethod: AuthPSK}
	var got LoginResponse
	if err := got.Decode(mustEncode(&m)); err != nil || got != m {
		t.Fatalf("%+v, %v", got, err)
	}
	m.AuthMethod = 8
	if err := got.Decode(mustEncode(&m)); err != errChoice {
		t.Fatalf("unknown method: %v", err)
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"aé", 2, "a"},
		{"aé", 3, "aé"},
		{"€€", 5, "€"},
		{"€", 2, ""},
		{"a\xff", 10, "a\uFFFD"},
		{"a\xff", 3, "a"},
	} {
		if got := clip(c.in, c.limit); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.limit, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		limit := rapid.IntRange(0, 40).Draw(t, "limit")
		got := clip(in, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("clip(%q, %d) = %q", in, limit, got)
		}
		if utf8.ValidString(in) && !strings.HasPrefix(in, got) {
			t.Fatalf("clip(%q, %d) = %q is no prefix", in, limit, got)
		}
	})
}

// Texts for people never make a message fail.
func TestLongTextsAreClipped(t *testing.T) {
	long := strings.Repeat("é", 5000) + "\xff"
	response := OpenResponse{
		Name: strings.Repeat("n", MaxName), MinimumBlock: 1,
		PreferredBlock: 1, Description: long, Reason: long,
	}
	var got OpenResponse
	if err := got.Decode(mustEncode(&response)); err != nil {
		t.Fatal(err)
	}
	if len(got.Description) != MaxDescription || len(got.Reason) != MaxReason ||
		got.Name != response.Name {
		t.Errorf("description %d, reason %d, name %d bytes",
			len(got.Description), len(got.Reason), len(got.Name))
	}
	var refused Refused
	err := refused.Decode(mustEncode(&Refused{Status: StatusAuth, Text: long}))
	if err != nil || len(refused.Text) != MaxReason {
		t.Errorf("text of %d bytes, %v", len(refused.Text), err)
	}
}

// readPages lists all through pages of size bytes, as a reader would.
func readPages(t *rapid.T, all []ExportEntry, size int) (got []ExportEntry) {
	cursor := uint32(0)
	for range len(all) + 1 {
		page := DiscoverResponse{Entries: all[cursor:]}
		if err := page.Paginate(cursor, size); err != nil {
			t.Fatalf("page at %d: %v", cursor, err)
		}
		b := make([]byte, size)
		n, err := page.Encode(b)
		if err != nil {
			t.Fatalf("page at %d: %v", cursor, err)
		}
		var read DiscoverResponse
		if err := read.Decode(b[:n]); err != nil {
			t.Fatalf("page at %d: %v", cursor, err)
		}
		got = append(got, read.Entries...)
		if read.Next == 0 {
			return got
		}
		if read.Next != cursor+uint32(len(read.Entries)) {
			t.Fatalf("page at %d has %d entries, next %d", cursor,
				len(read.Entries), read.Next)
		}
		cursor = read.Next
	}
	t.Fatalf("the pages do not end")
	return nil
}

func TestDiscoverPages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{1024, 4096, MaxControlSize}).Draw(t, "size")
		all := make([]ExportEntry, rapid.IntRange(0, 60).Draw(t, "exports"))
		for i := range all {
			name := rapid.IntRange(0, 400).Draw(t, "name")
			text := rapid.IntRange(0, 1200).Draw(t, "description")
			all[i] = ExportEntry{
				Name: strings.Repeat("n", name), Size: uint64(i),
				Description: strings.Repeat("d", text), Default: i == 0,
			}
		}
		got := readPages(t, all, size)
		if len(got) != len(all) {
			t.Fatalf("%d entries of %d", len(got), len(all))
		}
		for i := range got {
			whole := all[i]
			text := whole.Description
			whole.Description = got[i].Description
			if got[i] != whole || !strings.HasPrefix(text, got[i].Description) {
				t.Fatalf("entry %d is %+v, want %+v", i, got[i], all[i])
			}
			if len(got[i].Description) < min(len(text), 500) {
				t.Fatalf("entry %d: description cut to %d bytes", i,
					len(got[i].Description))
			}
		}
	})
}

func TestDiscoverPageTooSmall(t *testing.T) {
	entries := []ExportEntry{{Name: strings.Repeat("n", 100), Description: "d"}, {}}
	for size, want := range map[int]error{
		discoverResponseSize - 1:                       errShortBuffer,
		discoverResponseSize + exportEntrySize + 99:    errShortBuffer,
		discoverResponseSize + exportEntrySize + 100:   nil,
		discoverResponseSize + 2*exportEntrySize + 101: nil,
	} {
		m := DiscoverResponse{Entries: entries}
		if err := m.Paginate(5, size); err != want {
			t.Errorf("%d bytes: %v, want %v", size, err, want)
		}
		if want == nil && size < discoverResponseSize+2*exportEntrySize+101 &&
			(m.Next != 6 || len(m.Entries) != 1 || m.Entries[0].Description != "") {
			t.Errorf("%d bytes: next %d, entries %+v", size, m.Next, m.Entries)
		}
	}
	if entries[0].Description != "d" {
		t.Error("paginating changed the caller's list")
	}
	if err := (&DiscoverResponse{}).Paginate(0, discoverResponseSize-1); err != errShortBuffer {
		t.Errorf("no entries, no room: %v", err)
	}
	whole := DiscoverResponse{Entries: entries}
	if err := whole.Paginate(0, 0); err != nil || whole.Next != 0 || len(whole.Entries) != 2 {
		t.Errorf("size 0: next %d, %d entries, %v", whole.Next, len(whole.Entries), err)
	}
}

func TestFencePages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{
			fenceResponseSize + fenceEntrySize, 512,
			4096, 0,
		}).Draw(t, "size")
		slots := rapid.SliceOfNDistinct(rapid.Uint16(), 0, 900, rapid.ID).Draw(t, "slots")
		bySlot := make([]bool, 1<<16)
		for _, s := range slots {
			bySlot[s] = true
		}
		var all []FenceEntry
		for slot, used := range bySlot {
			if used {
				all = append(all, FenceEntry{Seq: uint32(slot) * 3, Slot: uint16(slot)})
			}
		}
		var got []FenceEntry
		for cursor, pages := uint32(0), 0; ; pages++ {
			if pages > len(all) {
				t.Fatalf("the pages do not end")
			}
			var page FenceResponse
			for _, e := range all {
				if uint32(e.Slot) >= cursor {
					page.Entries = append(page.Entries, e)
				}
			}
			if err := page.Paginate(size); err != nil {
				t.Fatal(err)
			}
			b := mustEncode(&page)
			if size != 0 && len(b) > size {
				t.Fatalf("page of %d bytes, size %d", len(b), size)
			}
			var read FenceResponse
			if err := read.Decode(b); err != nil {
				t.Fatal(err)
			}
			got = append(got, read.Entries...)
			if cursor = read.Next; cursor == 0 {
				break
			}
		}
		if len(got) != len(all) {
			t.Fatalf("%d entries of %d", len(got), len(all))
		}
		for i := range got {
			if got[i] != all[i] {
				t.Fatalf("entry %d is %+v, want %+v", i, got[i], all[i])
			}
		}
	})
	small := FenceResponse{Entries: make([]FenceEntry, 1)}
	for _, size := range []int{1, fenceResponseSize, fenceResponseSize + 11} {
		if err := small.Paginate(size); err != errShortBuffer {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// The dispatch refuses what is not a whole and intact header.
func TestPeekRefusesDamage(t *testing.T) {
	for _, s := range samples() {
		b := mustEncode(s.msg)
		if op, err := PeekKind(b[:HeaderSize-1]); op != 0 || !errors.Is(err, ErrShort) {
			t.Errorf("%s cut: %v, %v", s.name, op, err)
		}
		b[headerAtHeaderCRC] ^= 1
		if op, err := PeekKind(b); op != 0 || !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s with a wrong checksum: %v, %v", s.name, op, err)
		}
	}
	if op := RawOpcode(nil); op != 0 {
		t.Errorf("nothing claims to be %v", op)
	}
}

// An entry whose fixed part is cut is refused before it is read.
func TestDiscoverEntryIsCut(t *testing.T) {
	long := DiscoverResponse{Entries: []ExportEntry{{Name: strings.Repeat("n", 50)}}}
	b := mustEncode(&long)
	b[discoverResponseAtCount] = 2 // the name leaves room for the count alone
	repair(b)
	if err := new(DiscoverResponse).Decode(b); err != errBodyShort {
		t.Errorf("decode: %v", err)
	}
}
