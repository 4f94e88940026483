package wire

// CutTags cuts what a sealed session has behind a command or a reply off the
// tail of the message, which begins behind its first HeaderSize bytes: the tags
// of payload that RDMA moves. The decoder refuses a message that is shorter
// than its header says.
func CutTags(head, tail []byte) (rest, tags []byte) {
	h := (*[HeaderSize]byte)(head)
	end := len(tail)
	switch op := Opcode(h[commandAtOpcode]); {
	case op == OpReply:
		end = int(le.Uint32(h[replyAtInlineLength:]))
	case op == OpWrite && DataMode(h[commandAtMode]) == ModePull:
		end = int(le.Uint16(h[commandAtHeaderLength:])) - HeaderSize
	}
	if end < 0 || end >= len(tail) {
		return tail, nil
	}
	return tail[:end:end], tail[end:]
}
