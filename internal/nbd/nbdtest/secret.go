package nbdtest

import (
	"bytes"
	"crypto/tls"
	"time"
)

// deadlineSoon is when a peer gives up that waits for the server to stop
// reading.
func deadlineSoon() time.Time { return time.Now().Add(2 * time.Second) }

// secrets are about TLS.
var secrets = []Statement{
	{"H-20", "nothing that was agreed before TLS counts in it", func(p *probe) {
		p.secure()
		x := p.dial()
		x.greet(fixedNewstyle | noZeroes)
		if !p.Forced {
			x.option(optStructuredReply)
			x.wantReply(optStructuredReply, repAck, errUnsup)
		}
		x.startTLS()
		x.option(optSetMeta, MetaData(p.Export, "base:allocation"))
		x.wantError(optSetMeta) // structured replies are not agreed any more
		x.goTo(p.Export)
		x.wantAlive()
	}},
	{"CVE-2021-3716", "options that stand behind STARTTLS in the clear are not carried out in TLS", func(p *probe) {
		p.secure()
		x := p.dial()
		x.greet(fixedNewstyle | noZeroes)
		injected := bytes.Join([][]byte{[]byte("IHAVEOPT"), be32(optStructuredReply), be32(0)}, nil)
		x.send([]byte("IHAVEOPT"), be32(optStartTLS), be32(0), injected)
		if kind, _ := x.reply(optStartTLS); kind != repAck {
			return
		}
		// The injected bytes are no TLS record: either TLS does not come about,
		// or the server threw it away.
		secure := tls.Client(x.Conn, x.TLS)
		if secure.Handshake() != nil {
			return
		}
		x.Conn = secure
		x.option(optSetMeta, MetaData(p.Export, "base:allocation"))
		x.wantError(optSetMeta)
	}},
	{"H-21f", "where TLS is demanded, every option but STARTTLS and ABORT says so", func(p *probe) {
		p.secure()
		if !p.Forced {
			p.notOffered("TLS demanded")
		}
		x := p.dial()
		x.greet(fixedNewstyle | noZeroes)
		for _, id := range []uint32{optList, optInfo, optGo, optStructuredReply, optUnknown} {
			var data []byte
			if id == optInfo || id == optGo {
				data = GoData(p.Export)
			}
			x.option(id, data)
			x.wantReply(id, errTLSReqd)
		}
		y := p.dial()
		y.greet(fixedNewstyle | noZeroes)
		y.option(optExportName, []byte(p.Export))
		y.wantEnd()
		z := p.dial()
		z.greet(fixedNewstyle | noZeroes)
		z.option(optAbort)
		z.wantReply(optAbort, repAck)
		z.wantEnd()
	}},
	{"H-21d", "STARTTLS with data, and within TLS, is invalid", func(p *probe) {
		p.secure()
		x := p.dial()
		x.greet(fixedNewstyle | noZeroes)
		x.option(optStartTLS, []byte("data"))
		x.wantReply(optStartTLS, errInvalid, errTooBig)
		x.startTLS()
		x.option(optStartTLS)
		x.wantReply(optStartTLS, errInvalid)
		x.wantInSync()
	}},
}

// secure ends the probe of a server without TLS.
func (p *probe) secure() {
	if p.TLS == nil {
		p.notOffered("TLS")
	}
}
