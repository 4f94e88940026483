package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"
)

// BlockSize is the size of a block, in bytes: what a disk keeps in one piece.
const BlockSize = 4096

// Disk is a disk under test, or a connection to it. It is safe for concurrent
// use.
type Disk interface {
	io.ReaderAt
	io.WriterAt
}

// Fill fills a block with a value.
func Fill(block []byte, value uint64) {
	for ; len(block) > 0; block = block[8:] {
		binary.LittleEndian.PutUint64(block, value)
	}
}

// ErrTorn says that a block holds parts of several writes.
var ErrTorn = errors.New("torn block")

// Value returns the value that fills a block.
func Value(block []byte) (uint64, error) {
	value := binary.LittleEndian.Uint64(block)
	for at := 8; at < len(block); at += 8 {
		if v := binary.LittleEndian.Uint64(block[at:]); v != value {
			return 0, fmt.Errorf("%w: %s before byte %d, %s behind", ErrTorn, name(value), at, name(v))
		}
	}
	return value, nil
}

// Load is what the clients of a disk do: reads and writes of blocks in random
// places, each after its last one has ended. The fewer blocks there are, the
// more requests overlap.
type Load struct {
	Blocks   int // of the disk, from its beginning; 2³¹ at most
	Longest  int // request, in blocks
	Requests int // of each client
	Clients  int // of each connection
	Seed     uint64

	// Hot, if it is not 0, is how many blocks at the beginning of the disk get
	// half of the requests.
	Hot int

	// Durable, if it is not 0, has one of so many requests be a flush and one
	// write of so many have FUA, on connections that can.
	Durable int

	// Pause is how long a client rests after a request, on average.
	Pause time.Duration

	// Stop, if it is not nil, ends the load when it is closed.
	Stop <-chan struct{}
}

// durable is a disk that flushes.
type durable interface {
	WriteFUA(p []byte, at int64) (int, error)
	Flush() error
}

// Run has clients use the connections until they have made their requests, or
// the disk fails one, and records what they did. The disk is new,
// or the history has all that was written before. Clients are numbered from
// first on; one of a load before must not be among them.
func (l Load) Run(r Recorder, first int, connections ...Disk) error {
	failures := make([]error, len(connections)*l.Clients)
	var running sync.WaitGroup
	for i := range failures {
		running.Go(func() {
			c := &client{
				Load: l, recorder: r, number: first + i, disk: connections[i%len(connections)],
				random: rand.New(rand.NewPCG(l.Seed, uint64(first+i))), buffer: make([]byte, l.Longest*BlockSize),
			}
			for n := 0; n < l.Requests && !c.stopped(); n++ {
				if err := c.request(); err != nil {
					failures[i] = fmt.Errorf("client %d: %w", c.number, err)
					return
				}
				c.pause()
			}
		})
	}
	running.Wait()
	return errors.Join(failures...)
}

// client is a client of a load.
type client struct {
	Load
	recorder Recorder
	number   int
	disk     Disk
	random   *rand.Rand
	buffer   []byte
	writes   uint32
}

// stopped reports whether the load ends.
func (c *client) stopped() bool {
	select {
	case <-c.Stop:
		return true
	default:
		return false
	}
}

// pause rests, for as long as chance has it, so that clients do not go in step.
func (c *client) pause() {
	if c.Pause == 0 {
		return
	}
	select {
	case <-c.Stop:
	case <-time.After(time.Duration(c.random.Int64N(2 * int64(c.Pause)))):
	}
}

// rarely reports whether this is one of the requests for durability.
func (c *client) rarely() bool { return c.Durable > 0 && c.random.IntN(c.Durable) == 0 }

// request makes one request and records it.
func (c *client) request() error {
	if d, ok := c.disk.(durable); ok && c.rarely() {
		return d.Flush()
	}
	blocks := c.Blocks
	if c.Hot > 0 && c.random.IntN(2) == 0 {
		blocks = c.Hot
	}
	n := 1 + c.random.IntN(min(c.Longest, blocks))
	at := int64(c.random.IntN(blocks - n + 1))
	p := c.buffer[:n*BlockSize]
	if c.random.IntN(2) == 0 {
		return c.write(p, at)
	}
	return c.read(p, at)
}

// write writes blocks from the block at on.
func (c *client) write(p []byte, at int64) error {
	var done []Operation
	for b := range int64(len(p) / BlockSize) {
		c.writes++
		o := Operation{Client: c.number, Block: at + b, Write: true, Value: uint64(c.number)<<32 | uint64(c.writes)}
		Fill(p[b*BlockSize:][:BlockSize], o.Value)
		done = append(done, o)
	}
	put := c.disk.WriteAt
	if d, ok := c.disk.(durable); ok && c.rarely() {
		put = d.WriteFUA
	}
	call := c.recorder.Begin(c.number)
	_, err := put(p, at*BlockSize)
	end := c.recorder.Now()
	for i := range done {
		done[i].Call, done[i].Return, done[i].Lost = call, end, err != nil
	}
	c.recorder.End(c.number, done...)
	return err
}

// read reads blocks from the block at on.
func (c *client) read(p []byte, at int64) error {
	call := c.recorder.Begin(c.number)
	_, err := c.disk.ReadAt(p, at*BlockSize)
	end := c.recorder.Now()
	var done []Operation
	for b := int64(0); err == nil && b < int64(len(p)/BlockSize); b++ {
		var value uint64
		if value, err = Value(p[b*BlockSize:][:BlockSize]); err != nil {
			err = fmt.Errorf("block %d: %w", at+b, err)
			break
		}
		done = append(done, Operation{Client: c.number, Block: at + b, Value: value, Call: call, Return: end})
	}
	c.recorder.End(c.number, done...)
	return err
}
