package wire

import (
	"bytes"
	"testing"
)

// TestCutTags: the tags behind a message are cut off, and what is left decodes.
// A message that ends before its header says is left to the decoder.
func TestCutTags(t *testing.T) {
	tags := bytes.Repeat([]byte{0xee}, 32)
	segments := [MaxSegments]Segment{{1, 2, 3}, {4, 5, 6}, {7, 8, 9}}
	commands := map[string]struct {
		cmd    Command
		inline int
		want   int // bytes of tags
	}{
		"pull":             {Command{Opcode: OpWrite, Mode: ModePull, Length: 3, NumSegments: 1, Segments: segments}, 0, 32},
		"pull of segments": {Command{Opcode: OpWrite, Mode: ModePull, Length: 18, NumSegments: 3, Segments: segments}, 0, 32},
		"place":            {Command{Opcode: OpRead, Mode: ModePlace, Length: 3, NumSegments: 1, Segments: segments}, 0, 0},
		"inline":           {Command{Opcode: OpWrite, Mode: ModeInline, Length: 64, InlineLength: 64}, 64, 0},
		"flush":            {Command{Opcode: OpFlush}, 0, 0},
	}
	for name, c := range commands {
		b := make([]byte, MaxHeader+c.inline)
		n := c.cmd.Encode(b)
		msg := b[: n+c.inline : n+c.inline]
		if c.want > 0 {
			msg = append(msg, tags...)
		}
		rest, got := CutTags(msg[:HeaderSize], msg[HeaderSize:])
		if len(got) != c.want || !bytes.Equal(got, tags[:c.want]) {
			t.Errorf("%s: tags % x", name, got)
		}
		var back Command
		if err := back.DecodeSplit(msg[:HeaderSize], rest); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, inline := range []uint32{0, 8} {
		msg := make([]byte, HeaderSize+int(inline)+len(tags))
		r := Reply{Length: inline, InlineLength: inline}
		r.Encode(msg)
		copy(msg[HeaderSize+inline:], tags)
		rest, got := CutTags(msg[:HeaderSize], msg[HeaderSize:])
		if len(rest) != int(inline) || !bytes.Equal(got, tags) {
			t.Errorf("reply with %d bytes: rest %d, tags % x", inline, len(rest), got)
		}
		for cut := range int(inline) + 1 {
			if rest, got := CutTags(msg[:HeaderSize], msg[HeaderSize:][:cut]); got != nil || len(rest) != cut {
				t.Errorf("%d of %d bytes: rest %d, tags % x", cut, inline, len(rest), got)
			}
		}
	}
	huge := make([]byte, HeaderSize)
	huge[0] = byte(OpReply)
	for i := range 4 {
		huge[replyAtInlineLength+i] = 0xff
	}
	if rest, got := CutTags(huge, tags); got != nil || len(rest) != len(tags) {
		t.Errorf("a reply of 4 GiB: rest %d, tags % x", len(rest), got)
	}
	short := make([]byte, HeaderSize)
	short[0], short[commandAtMode] = byte(OpWrite), byte(ModePull)
	if rest, got := CutTags(short, tags); got != nil || len(rest) != len(tags) {
		t.Errorf("a command with a header of 0 bytes: rest %d, tags % x", len(rest), got)
	}
}
