package simulation

import (
	"errors"
	"time"

	"github.com/viablk/viablk/integration/history"
)

// The check of some records by porcupine, which also knows zeroes.
const (
	sampleSeeds = 64 // one seed of so many
	sampleMost  = 200
	sampleTime  = time.Second
)

// sample checks the record of a block by a search for an order of its accesses.
// A search that takes too long decides nothing.
func (b *blockRecord) sample(block int64) error {
	if len(b.accesses) > sampleMost {
		return nil
	}
	h := history.New()
	h.Add(history.Operation{Block: block, Write: true, Value: uint64(b.initial), Call: -2, Return: -1})
	for _, a := range b.accesses {
		client := 0
		if a.device != nil {
			client = a.device.number
		}
		until := int64(0)
		if a.lost && a.tag != zero { // reads of zeroes do not tell which write they saw
			until = int64(a.ended)
		}
		h.Add(history.Operation{
			Client: client, Block: block, Write: a.write, Value: uint64(a.tag), Lost: a.write && (a.lost || a.ended == never),
			Call: int64(a.began), Return: int64(a.ended), Until: until,
		})
	}
	err := h.Check(sampleTime)
	if errors.Is(err, history.ErrUndecided) {
		return nil
	}
	return err
}
