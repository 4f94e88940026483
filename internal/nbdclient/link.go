package nbdclient

import (
	"errors"
	"io"

	"github.com/viablk/viablk/internal/nbd"
	"golang.org/x/sys/unix"
)

// Reasons to give up a connection.
var (
	errSuperseded = errors.New("another connection to the server was lost")
	errEnded      = errors.New("the server closed the connection")
	errSilent     = errors.New("the server does not answer")
)

// connection is an open export, and the generation of servers that it is of.
type connection struct {
	opened     *nbd.Opened
	generation uint64
}

// link is the connection of a queue, with what is on its way in both
// directions.
type link struct {
	generation uint64
	stream     *nbd.Stream
	sender     *sender
	decoder    *decoder
}

func newLink(c *connection, slots []slot, left, finished func(uint16)) *link {
	mode := simpleReplies
	switch {
	case c.opened.Extended:
		mode = extendedReplies
	case c.opened.Structured:
		mode = chunkedReplies
	}
	l := &link{
		generation: c.generation, stream: c.opened.Stream,
		sender: newSender(c.opened.Extended, slots, left), decoder: newDecoder(mode, slots, finished),
	}
	l.decoder.context, l.decoder.hasContext = c.opened.Context, c.opened.HasContext
	return l
}

// receive decodes what has arrived. That is bounded by what was asked for.
func (l *link) receive() error {
	for {
		first, rest := l.decoder.room()
		n, err := l.stream.Receive(first, rest)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return err
		}
		if err := l.decoder.received(n); err != nil {
			return err
		}
		if n < len(first)+len(rest) {
			return nil
		}
	}
}

// disconnect ends the connection as the protocol has it. The server owes no
// answer.
func (l *link) disconnect() {
	disconnect(l.stream, l.sender.extended)
}

// disconnect sends DISC, if the connection takes it, and closes the connection.
func disconnect(s *nbd.Stream, extended bool) {
	_, _ = s.Send([][]byte{appendHeader(nil, extended, 0, cmdDisconnect, 0, 0, 0)})
	s.Close()
}
