package nbdtest

import (
	"bytes"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
)

// absent is the name of no export.
const absent = "there is no such export"

// handshakes are about flags and the options that are no questions.
var handshakes = []Statement{
	{"H-1", "an unknown client flag ends the connection without a reply", func(p *probe) {
		for _, flags := range []uint32{1 << 2, 1<<31 | fixedNewstyle | noZeroes} {
			x := p.dial()
			x.greet(flags)
			x.wantEnd()
		}
	}},
	{"H-2", "a client flag that the server did not offer ends the connection", func(p *probe) {
		x := p.dial()
		x.greet(fixedNewstyle | noZeroes)
		if x.advertised&noZeroes != 0 {
			p.notOffered("a server without NO_ZEROES")
		}
		x.wantEnd()
	}},
	{"H-3", "a client without fixed newstyle may use EXPORT_NAME", func(p *probe) {
		p.inTheClear()
		x := p.dial()
		x.greet(0)
		x.option(optExportName, []byte(p.Export))
		x.receive(10 + 124)
		x.wantAlive()
	}},
	{"H-4", "124 zeroes follow EXPORT_NAME unless NO_ZEROES was agreed, and never GO", func(p *probe) {
		p.inTheClear()
		for _, flags := range []uint32{fixedNewstyle, fixedNewstyle | noZeroes} {
			x := p.dial()
			x.greet(flags)
			x.option(optExportName, []byte(p.Export))
			x.receive(10)
			if flags&noZeroes == 0 && !bytes.Equal(x.receive(124), make([]byte, 124)) {
				p.failf("what should be zeroes is not")
			}
			x.wantAlive()
		}
		x := p.dial()
		x.greet(fixedNewstyle)
		x.goTo(p.Export)
		x.wantAlive()
	}},
	{"H-5", "EXPORT_NAME of an export that is not there ends the connection without a reply", func(p *probe) {
		p.strictNames()
		x := p.haggle()
		x.option(optExportName, []byte(absent))
		x.wantEnd()
	}},
	{"H-6", "ABORT is acknowledged, also with data, and ends the connection", func(p *probe) {
		for _, data := range []string{"", "goodbye"} {
			x := p.haggle()
			x.option(optAbort, []byte(data))
			x.wantReply(optAbort, repAck)
			x.wantEnd()
		}
	}},
	{"H-7", "LIST names each export in a reply of its own; with data it is invalid", func(p *probe) {
		x := p.haggle()
		x.option(optList)
		for {
			kind, data := x.reply(optList)
			if kind == repAck {
				break
			}
			if kind == errPolicy || kind == errUnsup {
				p.notOffered("LIST")
			}
			if kind != repServer || len(data) < 4 || int(data[2])<<8|int(data[3]) > len(data)-4 {
				p.failf("reply %#x (%q) to LIST", kind, data)
			}
		}
		x.option(optList, []byte("data"))
		x.wantReply(optList, errInvalid, errTooBig)
		x.wantInSync()
	}},
	{"H-8", "an unknown option is refused, its data is skipped, and the next one is answered", func(p *probe) {
		x := p.haggle()
		for _, n := range []int{0, 1, 1000, 8000} {
			x.option(optUnknown, pattern(n, 3))
			x.wantReply(optUnknown, errUnsup, errTooBig)
		}
		x.goTo(p.Export)
		x.wantAlive()
	}},
	{"H-9", "an option of 4 GiB is refused or ends the connection; the server does not wait for it", func(p *probe) {
		for _, id := range []uint32{optExportName, optList, optGo, optUnknown} {
			x := p.haggle()
			x.send([]byte("IHAVEOPT"), be32(id), be32(0xffffffff))
			x.trySend(make([]byte, 1<<20))
			if !x.ends() {
				p.failf("option %d: neither refused nor the end", id)
			}
		}
	}},
	{"H-10", "lengths inside INFO and GO that do not fit are invalid, and skipped", func(p *probe) {
		for what, data := range map[string][]byte{
			"a name longer than the option": append(be32(200), "short"...),
			"a name of 4 GiB":               append(be32(0xffffffff), "short"...),
			"a name of 4 GiB less six":      append(be32(0xfffffffa), "short"...),
			"less than the lengths":         {0, 0, 0},
			"nothing":                       {},
			"more behind the end":           append(GoData(p.Export), "more"...),
			"fewer informations than said":  append(append(be32(0), be16(9)...), be16(3)...),
		} {
			for _, id := range []uint32{optInfo, optGo} {
				x := p.haggle()
				x.option(id, data)
				if kind, _ := x.reply(id); kind != errInvalid && kind != errTooBig {
					p.failf("%s: reply %#x", what, kind)
				}
				x.wantInSync()
			}
		}
	}},
	{"H-11", "a name that is too long, no UTF-8 or with a zero in it is refused, and skipped", func(p *probe) {
		names := map[string]string{
			"4097 bytes": strings.Repeat("x", 4097),
			"5000 bytes": strings.Repeat("y", 5000),
		}
		if p.checksNames() {
			names["no UTF-8"], names["a zero"] = "\xff\xfe\xfd", p.Export+"\x00tail"
		}
		for what, name := range names {
			x := p.haggle()
			x.option(optInfo, GoData(name))
			if kind, data := x.reply(optInfo); kind&repError == 0 {
				p.failf("%s: reply %#x (%q)", what, kind, data)
			}
			x.wantInSync()
		}
	}},
	{"H-21", "without TLS, STARTTLS is refused as policy or unsupported, and TLS is never demanded", func(p *probe) {
		if p.TLS != nil {
			p.notOffered("a server without TLS")
		}
		x := p.haggle()
		x.option(optStartTLS)
		x.wantReply(optStartTLS, errPolicy, errUnsup)
		x.option(optUnknown)
		x.wantReply(optUnknown, errUnsup)
		x.goTo(p.Export)
	}},
	{"H-22", "EXPORT_NAME after extended headers ends the connection", func(p *probe) {
		x := p.haggle()
		x.setReplyMode(extended)
		x.option(optExportName, []byte(p.Export))
		x.wantEnd()
	}},
	{"H-24", "a client cannot haggle for ever", func(p *probe) {
		x := p.haggle()
		go func() { _, _ = io.Copy(io.Discard, x) }() // ends with the connection
		for range 100_000 {
			if _, err := x.Write(bytes.Repeat(append([]byte("IHAVEOPT"), append(be32(optUnknown), be32(0)...)...), 10)); err != nil {
				if isTimeout(err) {
					p.failf("a million options and no end")
				}
				return
			}
		}
		p.failf("a million options are taken")
	}},
}

// informations are about INFO, GO and what they tell.
var informations = []Statement{
	{"H-12", "INFO about an export that is not there is an error, and no information", func(p *probe) {
		p.strictNames()
		x := p.haggle()
		x.option(optInfo, GoData(absent))
		x.wantReply(optInfo, errUnknown)
		x.wantInSync()
	}},
	{"H-13", "GO tells what INFO told just before", func(p *probe) {
		x := p.haggle()
		x.option(optInfo, GoData(p.Export, infoBlockSize))
		before := x.infos(optInfo)
		x.option(optGo, GoData(p.Export, infoBlockSize))
		if after := x.infos(optGo); !maps.EqualFunc(before, after, bytes.Equal) {
			p.failf("INFO: %x, GO: %x", before, after)
		}
		x.wantAlive()
	}},
	{"H-14", "GO to an export that is not there fails, whatever INFO was asked before", func(p *probe) {
		p.strictNames()
		x := p.haggle()
		x.option(optInfo, GoData(p.Export))
		x.infos(optInfo)
		x.option(optGo, GoData(absent))
		x.wantReply(optGo, errUnknown)
		x.wantInSync()
	}},
	{"H-15", "unknown informations and the same one twice are no error", func(p *probe) {
		x := p.haggle()
		x.option(optGo, GoData(p.Export, 0x7777, infoBlockSize, infoBlockSize, 0xffff))
		x.infos(optGo)
		x.wantAlive()
	}},
	{"T-23", "block sizes that are told are powers of two in order, and fit the export", func(p *probe) {
		x := p.haggle()
		x.option(optGo, GoData(p.Export, infoBlockSize))
		infos := x.infos(optGo)
		b, told := infos[infoBlockSize]
		if !told {
			p.notOffered("block sizes")
		}
		if len(b) != 12 {
			p.failf("%d bytes of block sizes", len(b))
		}
		var sizes [3]uint64
		for i := range sizes {
			for _, v := range b[4*i : 4*i+4] {
				sizes[i] = sizes[i]<<8 | uint64(v)
			}
		}
		least, preferred, most := sizes[0], sizes[1], sizes[2]
		isPower := func(v uint64) bool { return v != 0 && v&(v-1) == 0 }
		if !isPower(least) || !isPower(preferred) || least > 64<<10 || preferred < max(least, 512) || most < preferred || x.size%least != 0 {
			p.failf("least %d, preferred %d, most %d of %d", least, preferred, most, x.size)
		}
		if least > 1 {
			x.want(one(eInval), 0, cmdRead, 1, least)
		}
		x.wantOK(0, cmdRead, 0, max(least, 512))
	}},
	{"M-1", "the flags of an export agree with each other", func(p *probe) {
		x := p.connect(simple)
		switch {
		case x.flags&1 == 0:
			p.failf("flags %#x lack the first", x.flags)
		case x.flags&hasDF != 0:
			p.failf("flags %#x: DF without structured replies", x.flags)
		case x.flags&hasFastZero != 0 && x.flags&hasWriteZeroes == 0:
			p.failf("flags %#x: fast zeroes without zeroes", x.flags)
		case x.flags&hasMultiConn != 0 && x.flags&(hasFlush|hasReadOnly) == 0:
			p.failf("flags %#x: several connections without a flush that covers them", x.flags)
		}
	}},
}

// inTheClear ends a probe that makes its own handshake where TLS is demanded.
func (p *probe) inTheClear() {
	if p.Forced {
		p.notOffered("options before TLS")
	}
}

// strictNames ends a probe of a server that takes every name.
func (p *probe) strictNames() {
	if !p.checksNames() {
		p.notOffered("names")
	}
}

// checksNames reports whether the server refuses a name that nothing has.
func (p *probe) checksNames() bool {
	x := p.haggle()
	x.option(optInfo, GoData(absent))
	kind, _ := x.reply(optInfo)
	return kind != repInfo
}

// attacks are attacks of the past.
var attacks = []Statement{
	{"CVE-2017-15118", "a name of 3000 bytes hurts no other client", func(p *probe) {
		p.strictNames()
		x := p.haggle()
		x.option(optInfo, GoData(strings.Repeat("n", 3000)))
		x.wantError(optInfo)
		x.wantInSync()
	}},
	{"CVE-2020-10761", "the error about a name of 4096 bytes has a text of 4096 at most", func(p *probe) {
		p.strictNames()
		x := p.haggle()
		x.option(optInfo, GoData(strings.Repeat("n", 4096)))
		x.wantReply(optInfo, errUnknown, errInvalid, errTooBig)
		x.wantInSync()
	}},
	{"CVE-2017-15119", "a client may leave behind every byte of a handshake", func(p *probe) {
		p.inTheClear()
		script := slices.Concat(be32(fixedNewstyle), []byte("IHAVEOPT"), be32(optInfo), be32(uint32(len(GoData(p.Export)))), GoData(p.Export))
		for n := range len(script) + 1 {
			x := p.dial()
			x.trySend(script[:n])
			_ = x.Close()
		}
	}},
	{"CVE-2013-7441", "a thousand clients that ask for what is not there hurt no other client", func(p *probe) {
		p.strictNames()
		for range 1000 {
			x := p.haggle()
			x.option(optExportName, []byte(absent))
			_ = x.Close()
			p.conns = p.conns[:0]
		}
	}},
	{"CVE-2024-7409", "two hundred clients that say nothing keep no later client out", func(p *probe) {
		var silent []net.Conn
		for range 200 {
			c, err := p.Dial()
			if err != nil {
				break // refused is fine
			}
			silent = append(silent, c)
		}
		for _, c := range silent {
			_ = c.Close()
		}
		p.connect(simple).wantAlive()
	}},
	{"T-18", "a client that leaves with 64 MiB of answers on their way hurts no other client", func(p *probe) {
		other := p.connect(simple)
		for range 4 {
			x := p.connect(simple)
			for i := range 64 {
				x.trySend(x.request(0, cmdRead, uint64(i), uint64(i)<<20, 1<<20))
			}
			_ = x.Close()
			y := p.connect(simple)
			y.trySend(y.request(0, cmdWrite, 1, 0, 1<<20), pattern(1000, 1))
			_ = y.Close()
			other.wantAlive()
		}
	}},
}
