package nbdtest

import (
	"fmt"
	"hash/crc32"
)

// RunScript has a conversation that a script chooses, and returns a line for
// each thing said and the class of its answer: the same script makes the same
// conversation with every server. Every script is one: options, GO, requests of
// which each waits for its answer, DISC. The export has a size of [ScriptSize]
// and no minimum block size.
func (s *Server) RunScript(script []byte) (lines []string) {
	ask := Statement{probe: func(p *probe) {
		c := scriptedPeer{script: script, lines: &lines}
		c.peer = p.haggle()
		c.options()
		c.goTo(p.Export)
		c.requests()
		c.send(c.request(0, cmdDisc, 1, 0, 0))
		c.wantEnd()
		lines = append(lines, "end")
	}}
	if r := ask.run(s); r.Outcome != Pass {
		lines = append(lines, "cut off: "+r.Why)
	}
	return lines
}

// ScriptSize is the size of the export of a conversation, bytes.
const ScriptSize = 1 << 20

// scriptedPeer is what is said to a server.
type scriptedPeer struct {
	*peer
	script []byte
	lines  *[]string
}

// choose takes one of n from the script, the first when that has ended.
func (c *scriptedPeer) choose(n int) int {
	if len(c.script) == 0 {
		return 0
	}
	b := c.script[0]
	c.script = c.script[1:]
	return int(b) % n
}

func (c *scriptedPeer) record(format string, args ...any) {
	*c.lines = append(*c.lines, fmt.Sprintf(format, args...))
}

// options says some options. A SET_META_CONTEXT that fails is not among them:
// what it leaves selected is a statement of its own, H-19.
func (c *scriptedPeer) options() {
	for range c.choose(8) {
		switch c.choose(6) {
		case 0:
			c.haggleOver("LIST", optList, [][]byte{nil, []byte("data")}[c.choose(2)])
		case 1:
			c.haggleOver("INFO", optInfo, [][]byte{
				GoData(c.Export), GoData(c.Export, infoBlockSize, 1, 2, 0x7777), append(be32(100), 1), {}, append(GoData(c.Export), 9),
			}[c.choose(5)])
		case 2:
			data := [][]byte{nil, []byte("data")}[c.choose(2)]
			if c.haggleOver("STRUCTURED_REPLY", optStructuredReply, data) == "ack" {
				c.replyMode = structured
			}
		case 3:
			c.haggleOver("LIST_META_CONTEXT", optListMeta, MetaData(c.Export, c.queries()...))
		case 4:
			c.haggleOver("SET_META_CONTEXT", optSetMeta, MetaData(c.Export, c.queries()...))
		case 5:
			c.haggleOver("unknown option", optUnknown, make([]byte, []int{0, 1, 511, 4096}[c.choose(4)]))
		}
	}
}

func (c *scriptedPeer) queries() []string {
	return [][]string{{"base:allocation"}, nil, {"base:"}, {"unknown:context"}, {"unknown:context", "base:allocation"}}[c.choose(5)]
}

// haggleOver says an option and returns the class of the last reply.
func (c *scriptedPeer) haggleOver(name string, id uint32, data []byte) (class string) {
	c.option(id, data)
	contexts, last := 0, uint32(repInfo)
	for last == repInfo || last == repServer || last == repMetaContext {
		var more []byte
		last, more = c.reply(id)
		if last == repMetaContext && len(more) > 4 && string(more[4:]) == "base:allocation" {
			contexts++
			if id == optSetMeta {
				c.context, c.selected = uint32(more[0])<<24|uint32(more[1])<<16|uint32(more[2])<<8|uint32(more[3]), true
			}
		}
	}
	class = map[uint32]string{repAck: "ack", errUnsup: "unsupported", errPolicy: "unsupported", errInvalid: "invalid", errTooBig: "invalid"}[last]
	if class == "" {
		class = fmt.Sprintf("%#x", last)
	}
	c.record("%s of %d bytes: %s, %d contexts", name, len(data), class, contexts)
	return class
}

// commandNames are the commands of conversations.
var commandNames = map[uint16]string{
	cmdRead: "READ", cmdWrite: "WRITE", cmdFlush: "FLUSH", cmdTrim: "TRIM", cmdCache: "CACHE",
	cmdWriteZeroes: "WRITE_ZEROES", cmdBlockStatus: "BLOCK_STATUS", cmdUnknown: "unknown command",
}

// requests makes some requests.
func (c *scriptedPeer) requests() {
	commands := []uint16{cmdRead, cmdWrite, cmdFlush, cmdTrim, cmdCache, cmdWriteZeroes, cmdBlockStatus, cmdUnknown}
	flags := []uint16{0, 0, flagFUA, flagNoHole, flagDF, flagReqOne, flagUnknown}
	offsets := []uint64{0, 512, 4096, 65537, ScriptSize - 512, ScriptSize, ScriptSize + 4096, 1 << 63, ^uint64(511)}
	sizes := []uint64{512, 1, 4096, 65536, 4095, ScriptSize}
	for range c.choose(24) {
		command, flag := commands[c.choose(len(commands))], flags[c.choose(len(flags))]
		offset, length := offsets[c.choose(len(offsets))], sizes[c.choose(len(sizes))]
		if command == cmdFlush {
			offset, length = 0, 0
		}
		var payload []byte
		if command == cmdWrite {
			payload = pattern(int(length), byte(c.choose(256)))
		}
		a := c.do(flag, command, offset, length, payload)
		sum := uint32(0)
		if command == cmdRead && a.errno == ok {
			sum = crc32.ChecksumIEEE(a.data)
		}
		c.record("%s flags %#x [%#x, +%d): errno %d, data %#x", commandNames[command], flag, offset, length, a.errno, sum)
	}
}
