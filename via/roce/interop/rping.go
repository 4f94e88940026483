package interop

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/viablk/viablk/via"
)

// rping is the example program of librdmacm. Its client offers memory that the
// server reads by RDMA, then memory to which the server writes the data it has
// read, and compares the two. An offer is a Send of 16 bytes, big-endian:
// address 8, key 4, length 4. The server answers each offer with a Send of the
// same size after the RDMA operation.
const (
	offerSize = 16

	// Layout of the memory of an end.
	offerOut = 0
	offerIn  = 64
	rpingAt  = 4096
)

// RpingMemory returns the memory size of an end for messages of a size.
func RpingMemory(size int) int { return (rpingAt + 2*size + 4095) &^ 4095 }

// offer returns a Send with an offer of memory.
func (e *End) offer(at, size int) *via.Work {
	b := e.Memory.Bytes()[offerOut:]
	binary.BigEndian.PutUint64(b, e.Memory.Addr()+uint64(at))
	binary.BigEndian.PutUint32(b[8:], e.Memory.Handle())
	binary.BigEndian.PutUint32(b[12:], uint32(size))
	return e.Work(via.OpSend, offerOut, offerSize)
}

// OfferReceive returns the initial receive of an end of rping.
func (e *End) OfferReceive() *via.Work { return e.Work(via.OpRecv, offerIn, offerSize) }

// awaitMessage waits for the peer's next message and the given sends, and
// reposts the receive.
func (e *End) awaitMessage(ctx context.Context, receive *via.Work, sent ...*via.Work) error {
	if err := e.Await(ctx, append(sent, receive)...); err != nil {
		return err
	}
	if receive.Moved != offerSize {
		return fmt.Errorf("a message of %d bytes, rping's have %d", receive.Moved, offerSize)
	}
	*receive = *e.OfferReceive()
	return e.Post(receive)
}

// RpingServe serves a number of rounds of an rping client, and returns when the
// client has disconnected after the last answer.
func (e *End) RpingServe(ctx context.Context, receive *via.Work, rounds, size int) error {
	var last []*via.Work // the latest answer
	for i := range rounds {
		var err error
		if last, err = e.serveRound(ctx, receive, size, last); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	// The client may disconnect before its device has acknowledged the answer.
	if err := e.Await(ctx, append(last, receive)...); !errors.Is(err, ErrEnded) {
		return fmt.Errorf("the client has not disconnected: %w", err)
	}
	return nil
}

// serveRound serves a round and returns its last works, which are in flight.
// Those of the round before are sent.
func (e *End) serveRound(ctx context.Context, receive *via.Work, size int, sent []*via.Work) ([]*via.Work, error) {
	if err := e.awaitMessage(ctx, receive, sent...); err != nil {
		return nil, fmt.Errorf("wait for memory to read: %w", err)
	}
	read, err := e.onOffer(via.OpRdmaRead, size, size)
	if err != nil {
		return nil, err
	}
	if err := e.Post(read); err != nil {
		return nil, err
	}
	if err := e.Await(ctx, read); err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	goOn := e.Work(via.OpSend, offerOut, offerSize)
	if err := e.Post(goOn); err != nil {
		return nil, err
	}
	if err := e.awaitMessage(ctx, receive, goOn); err != nil {
		return nil, fmt.Errorf("wait for memory to write: %w", err)
	}
	text := bytes.IndexByte(e.Memory.Bytes()[rpingAt:rpingAt+size], 0) + 1
	if text == 0 {
		return nil, errors.New("the data read is not text")
	}
	write, err := e.onOffer(via.OpRdmaWrite, text, size)
	if err != nil {
		return nil, err
	}
	goOn = e.Work(via.OpSend, offerOut, offerSize)
	return []*via.Work{write, goOn}, e.Post(write, goOn)
}

// onOffer returns an RDMA operation of n bytes on the memory of the peer's last
// offer, which must be of size bytes.
func (e *End) onOffer(op via.Opcode, n, size int) (*via.Work, error) {
	b := e.Memory.Bytes()[offerIn:]
	if got := binary.BigEndian.Uint32(b[12:]); int(got) != size {
		return nil, fmt.Errorf("the peer offers %d bytes, not %d", got, size)
	}
	w := e.Work(op, rpingAt, n)
	w.RemoteAddr = binary.BigEndian.Uint64(b)
	w.RemoteHandle = binary.BigEndian.Uint32(b[8:])
	return w, nil
}

// RpingAsk is the client: it lets an rping server read and write, and compares
// the data.
func (e *End) RpingAsk(ctx context.Context, receive *via.Work, rounds, size int) error {
	source, sink := rpingAt, rpingAt+size
	memory := e.Memory.Bytes()
	for i := range rounds {
		rpingText(memory[source:source+size], i)
		clear(memory[sink : sink+size])
		for _, at := range []int{source, sink} {
			send := e.offer(at, size)
			if err := e.Post(send); err != nil {
				return err
			}
			if err := e.awaitMessage(ctx, receive, send); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
		}
		if !bytes.Equal(memory[source:source+size], memory[sink:sink+size]) {
			return fmt.Errorf("round %d: the server wrote other data than it read", i)
		}
	}
	return nil
}

// rpingText fills b with the NUL-terminated text of a round.
func rpingText(b []byte, round int) {
	n := copy(b, fmt.Sprintf("rdma-ping-%d: ", round))
	for i := n; i < len(b); i++ {
		b[i] = byte('A' + (round+i)%('z'-'A'+1))
	}
	b[len(b)-1] = 0
}
