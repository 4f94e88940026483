package nbd

import (
	"bytes"
	"strings"

	"github.com/viablk/viablk/internal/nbd/nbdtest"
)

// set is a script behind structured replies with one SET_META_CONTEXT.
func set(do func(p *peer), data ...[]byte) func(*peer) {
	return greeted(func(p *peer) {
		p.speak(structured)
		p.option(optSetMeta, data...)
		do(p)
	})
}

// wantContexts receives the contexts that an option is answered with.
func (p *peer) wantContexts(option uint32, want ...string) {
	p.t.Helper()
	var got []string
	for {
		kind, data := p.reply(option)
		if kind == repAck {
			break
		}
		if kind != repMetaContext || len(data) < 4 {
			p.t.Fatalf("reply type %#x (%q)", kind, data)
		}
		if option == optSetMeta && bytes.Equal(data[:4], be32(0)) {
			p.t.Fatal("a context is selected as number 0")
		}
		got = append(got, string(data[4:]))
	}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		p.t.Fatalf("contexts %q, want %q", got, want)
	}
}

// startSelected begins transmission on an export, and checks whether
// BLOCK_STATUS is served.
func (p *peer) startSelected(export string, selected bool) {
	p.t.Helper()
	p.option(optGo, nbdtest.GoData(export, infoBlockSize))
	p.infos(optGo)
	if selected {
		p.want(0, 0, cmdBlockStatus, 0, 4096)
	} else {
		p.want(einval, 0, cmdBlockStatus, 0, 4096)
	}
}

// wantBlind checks that the haggling goes on and that nothing is selected.
func wantBlind(p *peer) {
	p.t.Helper()
	p.wantInSync()
	p.startSelected("disk", false)
}

// agreements are the statements about options that change what follows.
var agreements = []struct {
	name string
	do   func(p *peer)
}{
	{"H-16 STRUCTURED_REPLY after EXTENDED_HEADERS", greeted(func(p *peer) {
		p.speak(extended)
		p.option(optStructuredReply)
		p.wantReply(optStructuredReply, repErrExtHeaderReqd)
		p.wantInSync()
		p.startSelected("disk", false)
	})},
	{"H-17 SET_META_CONTEXT without structured replies", greeted(func(p *peer) {
		p.option(optSetMeta, nbdtest.MetaData("disk", contextName))
		p.wantReply(optSetMeta, repErrInvalid)
		p.wantInSync()
	})},
	{"H-17 LIST_META_CONTEXT without structured replies", greeted(func(p *peer) {
		p.option(optListMeta, nbdtest.MetaData("disk"))
		p.wantContexts(optListMeta, contextName)
		p.wantInSync()
	})},
	{"H-17 SET_META_CONTEXT after EXTENDED_HEADERS", greeted(func(p *peer) {
		p.speak(extended)
		p.option(optSetMeta, nbdtest.MetaData("", contextName))
		p.wantContexts(optSetMeta, contextName)
		p.startSelected("disk", true)
	})},
	{"H-18 LIST of a namespace", set(func(p *peer) {
		p.wantContexts(optSetMeta)
		for _, row := range []struct {
			queries []string
			want    []string
		}{
			{nil, []string{contextName}},
			{[]string{"base:"}, []string{contextName}},
			{[]string{"base:allocation"}, []string{contextName}},
			{[]string{"base:allocation", "base:", "base:allocation"}, []string{contextName}},
			{[]string{"base:bogus"}, nil},
			{[]string{"base"}, nil},
			{[]string{"base:allocations"}, nil},
			{[]string{"x-unknown:", "qemu:dirty-bitmap:b", ""}, nil},
		} {
			p.option(optListMeta, nbdtest.MetaData("disk", row.queries...))
			p.wantContexts(optListMeta, row.want...)
		}
		p.wantInSync()
	}, nbdtest.MetaData("disk"))},
	{"H-18 SET with a namespace selects nothing", set(func(p *peer) {
		p.wantContexts(optSetMeta)
		p.startSelected("disk", false)
	}, nbdtest.MetaData("disk", "base:"))},
	{"H-18 SET without queries selects nothing", set(func(p *peer) {
		p.wantContexts(optSetMeta)
		p.startSelected("disk", false)
	}, nbdtest.MetaData("disk"))},
	{"H-18 SET ignores what it does not know", set(func(p *peer) {
		p.wantContexts(optSetMeta, contextName)
		p.startSelected("disk", true)
	}, nbdtest.MetaData("disk", "base:bogus", "x-other:thing", contextName, contextName))},
	{"H-18 a million queries", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	}, be32(4), []byte("disk"), be32(1_000_000))},
	{"H-18 2^32-1 queries", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	}, be32(4), []byte("disk"), be32(0xffffffff), make([]byte, 1000))},
	{"H-18 query longer than the option", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	}, be32(4), []byte("disk"), be32(1), be32(16), []byte(contextName))},
	{"H-18 query of 4 GiB", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	}, be32(4), []byte("disk"), be32(1), be32(0xffffffff), []byte(contextName))},
	{"H-18 query of 4097 bytes", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	}, nbdtest.MetaData("disk", contextName, strings.Repeat("q", 4097)))},
	{"H-18 bytes behind the queries", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	}, nbdtest.MetaData("disk", contextName), []byte{0})},
	{"H-18 name longer than the option", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	}, be32(100), []byte("disk"), be32(0))},
	{"H-18 no data", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrInvalid)
		wantBlind(p)
	})},
	{"H-18 contexts of an unknown export", set(func(p *peer) {
		p.wantReply(optSetMeta, repErrUnknown)
		p.option(optListMeta, nbdtest.MetaData("absent"))
		p.wantReply(optListMeta, repErrUnknown)
		wantBlind(p)
	}, nbdtest.MetaData("absent", contextName))},
	{"H-18 an export that cannot tell has no contexts", set(func(p *peer) {
		p.wantContexts(optSetMeta)
		p.startSelected("plain", false)
	}, nbdtest.MetaData("plain", contextName))},
	{"H-19 a failing SET clears the selection", set(func(p *peer) {
		p.wantContexts(optSetMeta, contextName)
		p.option(optSetMeta, nbdtest.MetaData("absent", contextName))
		p.wantReply(optSetMeta, repErrUnknown)
		p.startSelected("disk", false)
	}, nbdtest.MetaData("disk", contextName))},
	{"H-19 a malformed SET clears the selection", set(func(p *peer) {
		p.wantContexts(optSetMeta, contextName)
		p.option(optSetMeta, []byte("?"))
		p.wantReply(optSetMeta, repErrInvalid)
		p.startSelected("disk", false)
	}, nbdtest.MetaData("disk", contextName))},
	{"H-19 SET for one export, GO for another", set(func(p *peer) {
		p.wantContexts(optSetMeta, contextName)
		p.startSelected("single", false)
	}, nbdtest.MetaData("disk", contextName))},
	{"H-19 LIST leaves the selection alone", set(func(p *peer) {
		p.wantContexts(optSetMeta, contextName)
		p.option(optListMeta, nbdtest.MetaData("absent"))
		p.wantReply(optListMeta, repErrUnknown)
		p.startSelected("disk", true)
	}, nbdtest.MetaData("disk", contextName))},
	{"H-19 SET for the default export selects it by name too", set(func(p *peer) {
		p.wantContexts(optSetMeta, contextName)
		p.startSelected("disk", true)
	}, nbdtest.MetaData("", contextName))},
	{"H-19 SET and then EXPORT_NAME", set(func(p *peer) {
		p.wantContexts(optSetMeta, contextName)
		p.option(optExportName, []byte("disk"))
		p.get(10)
		p.want(0, 0, cmdBlockStatus, 0, 4096)
	}, nbdtest.MetaData("disk", contextName))},
	{"H-22 EXTENDED_HEADERS with data", refused(optExtendedHeaders, repErrInvalid, []byte("x"))},
	{"H-22 EXTENDED_HEADERS twice", greeted(func(p *peer) {
		p.speak(extended)
		p.option(optExtendedHeaders)
		p.wantReply(optExtendedHeaders, repErrInvalid)
		p.option(optGo, nbdtest.GoData(""))
		p.infos(optGo)
		p.wantAlive()
	})},
	{"H-22 EXTENDED_HEADERS after STRUCTURED_REPLY", greeted(func(p *peer) {
		p.speak(structured)
		p.speak(extended)
		p.option(optGo, nbdtest.GoData(""))
		if flags := p.infos(optGo)[infoExport][8:]; !bytes.Equal(flags, be16(fullFlags|flagSendDF)) {
			p.t.Fatalf("flags % x", flags)
		}
		p.wantAlive()
	})},
	{"H-22 EXPORT_NAME after EXTENDED_HEADERS", greeted(func(p *peer) {
		p.speak(extended)
		p.option(optExportName, []byte("disk"))
		p.wantEnd()
	})},
	{"S-7 the payload of BLOCK_STATUS is offered where it is of use", greeted(func(p *peer) {
		p.speak(extended)
		p.option(optSetMeta, nbdtest.MetaData("disk", contextName))
		p.wantContexts(optSetMeta, contextName)
		for name, want := range map[string]uint16{
			"disk":   fullFlags | flagSendDF | flagStatusPayload,
			"single": fullFlags | flagSendDF,
		} {
			p.option(optInfo, nbdtest.GoData(name))
			if flags := p.infos(optInfo)[infoExport][8:]; !bytes.Equal(flags, be16(want)) {
				p.t.Fatalf("%s: flags % x, want %#x", name, flags, want)
			}
		}
	})},
}
