package nbdtest

// metas are about structured replies, extended headers and contexts in the
// handshake.
var metas = []Statement{
	{"H-16", "STRUCTURED_REPLY with data is invalid; a second one is acknowledged or invalid", func(p *probe) {
		x := p.haggle()
		x.option(optStructuredReply, []byte("data"))
		if kind, _ := x.reply(optStructuredReply); kind == errUnsup {
			p.notOffered("structured replies")
		} else if kind != errInvalid && kind != errTooBig {
			p.failf("reply %#x", kind)
		}
		for range 2 {
			x.option(optStructuredReply)
			x.wantReply(optStructuredReply, repAck, errInvalid)
		}
		x.replyMode = structured
		x.goTo(p.Export)
		x.wantAlive()
	}},
	{"H-16x", "STRUCTURED_REPLY after extended headers is refused", func(p *probe) {
		x := p.haggle()
		x.setReplyMode(extended)
		x.option(optStructuredReply)
		x.wantReply(optStructuredReply, errExtReqd)
		x.goTo(p.Export)
		x.wantAlive()
	}},
	{"H-17", "SET_META_CONTEXT without structured replies is refused", func(p *probe) {
		p.contexts()
		x := p.haggle()
		x.option(optSetMeta, MetaData(p.Export, "base:allocation"))
		x.wantError(optSetMeta)
		x.wantInSync()
	}},
	{"H-18", "unknown contexts are ignored, and none is selected that was not named", func(p *probe) {
		p.contexts()
		x := p.haggle()
		x.setReplyMode(structured)
		for _, c := range []struct {
			queries []string
			n       int
		}{
			{nil, 0},
			{[]string{"unknown:context"}, 0},
			{[]string{"base:"}, 0},
			{[]string{"base:bogus"}, 0},
			{[]string{""}, 0},
			{[]string{"unknown:context", "base:allocation", "base:bogus"}, 1},
		} {
			if _, n := x.setMeta(p.Export, c.queries...); n != c.n {
				p.failf("%q selects %d contexts, not %d", c.queries, n, c.n)
			}
		}
	}},
	{"H-18l", "LIST_META_CONTEXT without a query, and with the name of a namespace, lists base:allocation", func(p *probe) {
		p.contexts()
		for _, queries := range [][]string{nil, {"base:"}, {"base:allocation"}} {
			x := p.haggle()
			x.setReplyMode(structured)
			x.option(optListMeta, MetaData(p.Export, queries...))
			found := false
			for {
				kind, data := x.reply(optListMeta)
				if kind == repAck {
					break
				}
				if kind != repMetaContext || len(data) < 4 {
					p.failf("reply %#x (%q)", kind, data)
				}
				found = found || string(data[4:]) == "base:allocation"
			}
			if !found {
				p.failf("%q does not list it", queries)
			}
		}
	}},
	{"H-18i", "lengths inside SET_META_CONTEXT that do not fit are refused, and skipped", func(p *probe) {
		p.contexts()
		name := append(be32(uint32(len(p.Export))), p.Export...)
		for what, data := range map[string][]byte{
			"a query longer than the option": append(append(append([]byte{}, name...), be32(1)...), be32(1000)...),
			"a million queries":              append(append([]byte{}, name...), be32(1_000_000)...),
			"a name of 4 GiB":                append(be32(0xffffffff), 0, 0, 0, 0),
			"nothing":                        {},
		} {
			x := p.haggle()
			x.setReplyMode(structured)
			x.option(optSetMeta, data)
			if kind, _ := x.reply(optSetMeta); kind&repError == 0 {
				p.failf("%s: reply %#x", what, kind)
			}
			x.wantInSync()
		}
	}},
	{"H-19", "a SET_META_CONTEXT that fails, or is about another export, leaves nothing selected", func(p *probe) {
		p.contexts()
		x := p.haggle()
		x.setReplyMode(structured)
		x.selectContext()
		x.option(optSetMeta, be32(1000))
		x.wantError(optSetMeta)
		x.goTo(p.Export)
		x.want(one(eInval), 0, cmdBlockStatus, 0, 4096)
		x.wantAlive()
	}},
}

// contexts ends the probe of a server without base:allocation.
func (p *probe) contexts() {
	x := p.haggle()
	x.setReplyMode(structured)
	if _, n := x.setMeta(p.Export, "base:allocation"); n == 0 {
		p.notOffered("base:allocation")
	}
}
