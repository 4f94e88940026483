package wire

// Packet is one decoded packet. The opcode determines which extension headers
// are set; the others are stale.
type Packet struct {
	BTH
	RETH       RETH
	AETH       AETH
	DETH       DETH
	Immediate  uint32 // immediate data
	Invalidate uint32 // R_Key to invalidate
	Payload    []byte // without pad; part of the decoded bytes
}

// Decode decodes the packet b, the whole payload of a datagram, for a receiver
// with the partition key pkey. It applies every rule on length, pad, version,
// opcode, partition and syndrome, but does not check the ICRC. Accepted means
// that all fields of the opcode are set. With a refusal for which
// [Refusal.IsInvalidRequest] holds, only the BTH is set; with another one
// nothing is.
func (p *Packet) Decode(b []byte, pkey uint16) Refusal {
	switch {
	case len(b) < MinPacket:
		return RefusedShort
	case len(b) > MaxPacket:
		return RefusedLong
	case len(b)%4 != 0:
		return RefusedAlignment
	}
	info := &opcodes[b[bthAtOpcode]]
	p.BTH.Decode(b)
	end := len(b) - ICRCSize - int(p.Pad)
	switch {
	case info.size == 0:
		return RefusedOpcode
	case b[bthAtFlags]&bthVersion != 0:
		return RefusedVersion
	case !MatchPKey(p.PKey, pkey):
		return RefusedPartition
	case p.DestQP == 0:
		return RefusedQueuePair
	case len(b)-ICRCSize < int(info.size):
		return RefusedShort
	case end < int(info.size):
		return RefusedPad
	}
	p.Payload = b[info.size:end:end]
	if info.extensions != 0 {
		p.decodeExtensions(b[BTHSize:info.size], info.extensions)
	}
	return p.check(info)
}

// decodeExtensions reads the headers between BTH and payload; the caller has
// checked the length.
func (p *Packet) decodeExtensions(b []byte, has Extensions) {
	if has&ExtDETH != 0 {
		p.DETH.Decode(b)
		b = b[DETHSize:]
	}
	if has&ExtRETH != 0 {
		p.RETH.Decode(b)
		b = b[RETHSize:]
	}
	if has&ExtAETH != 0 {
		p.AETH.Decode(b)
	}
	if has&ExtImmDt != 0 {
		p.Immediate = be.Uint32(b)
	}
	if has&ExtIETH != 0 {
		p.Invalidate = be.Uint32(b)
	}
}

// check validates combinations of fields.
func (p *Packet) check(info *opcodeInfo) Refusal {
	n := len(p.Payload)
	switch info.payload {
	case payloadNone:
		if p.Pad != 0 {
			return RefusedPad
		} else if n != 0 {
			return RefusedPayload
		}
	case payloadFull:
		if p.Pad != 0 {
			return RefusedPad
		} else if n < MTU256.Bytes() || n&(n-1) != 0 {
			return RefusedPathMTU
		}
	case payloadSome:
		if n == 0 {
			return RefusedEmpty
		}
	case payloadReserved:
		if n != cnpReserved || p.Pad != 0 {
			return RefusedNotification
		}
	}
	if n > MaxPayload {
		return RefusedPathMTU
	}
	if info.extensions&ExtAETH != 0 && !p.AETH.Syndrome.fits(info.operation) {
		return RefusedSyndrome
	}
	if info.extensions&ExtRETH != 0 && !p.fitsMessage(info) {
		return RefusedMessage
	}
	return Accepted
}

// fitsMessage reports whether the length that a RETH gives to the message is
// possible with this packet's payload.
func (p *Packet) fitsMessage(info *opcodeInfo) bool {
	n := uint32(len(p.Payload))
	switch {
	case p.RETH.Length > MaxMessage:
		return false
	case info.operation == OpReadRequest:
		return true
	case info.flags&End != 0:
		return p.RETH.Length == n
	}
	return p.RETH.Length > n
}

// FitsMTU reports whether the payload suits a path with this MTU: exactly the
// MTU in a first or middle packet, no more in others. A request that does not
// fit is an invalid request.
func (p *Packet) FitsMTU(mtu MTU) bool {
	if opcodes[p.Opcode].payload == payloadFull {
		return len(p.Payload) == mtu.Bytes()
	}
	return len(p.Payload) <= mtu.Bytes()
}

// Put writes BTH and extension headers to b and returns their length. payload
// is the length of the bytes that follow; it determines the pad, and Payload is
// ignored. Atomic fields are written as zeros. [ICRC.Seal] makes the trailer.
// It panics if b is too short, which [MaxHeader] bytes never are, or if the
// opcode is unknown.
func (p *Packet) Put(b []byte, payload int) int {
	info := &opcodes[p.Opcode]
	if info.size == 0 {
		panic("wire: put of " + p.Opcode.String())
	}
	b = b[:info.size]
	p.Pad = uint8(-payload & 3)
	p.BTH.Encode(b)
	if info.extensions != 0 {
		p.putExtensions(b[BTHSize:], info.extensions)
	}
	return int(info.size)
}

// putExtensions is the reverse of decodeExtensions.
func (p *Packet) putExtensions(b []byte, has Extensions) {
	if has&ExtDETH != 0 {
		b = b[p.DETH.Encode(b):]
	}
	if has&ExtRETH != 0 {
		b = b[p.RETH.Encode(b):]
	}
	if has&ExtAETH != 0 {
		b = b[p.AETH.Encode(b):]
	}
	if has&(ExtAtomicETH|ExtAtomicAckETH) != 0 {
		clear(b)
	}
	if has&ExtImmDt != 0 {
		be.PutUint32(b, p.Immediate)
	}
	if has&ExtIETH != 0 {
		be.PutUint32(b, p.Invalidate)
	}
}

// Append appends the whole packet with a copy of Payload, for packets so short
// that gathering costs more than copying. c is the checksum between the two
// ends; the result grows by at most [MaxPacket] bytes.
func (p *Packet) Append(b []byte, c *ICRC, id Identification) []byte {
	var zeros [MaxHeader]byte
	start := len(b)
	b = append(b, zeros[:p.Opcode.HeaderSize()]...)
	header := p.Put(b[start:], len(p.Payload))
	b = append(b, p.Payload...)
	end := len(b)
	b = append(b, zeros[:int(p.Pad)+ICRCSize]...)
	c.Seal(b[end:], id, b[start:start+header], b[start+header:end])
	return b
}
