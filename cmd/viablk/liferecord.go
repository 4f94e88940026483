package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/target/identity"
)

// lifeRecord is who an attach is to its target, as a file has it.
type lifeRecord struct {
	Schema     string `json:"schema"` // viablk.life/v1
	PID        int    `json:"pid"`
	Boot       string `json:"boot"` // of the machine: its clients end with it
	URI        string `json:"uri"`
	Writer     string `json:"writer"`     // and the others of [initiator.Life]; empty
	UUID       string `json:"uuid"`       // of an NBD server's export
	Generation uint64 `json:"generation"` //
	Verifier   uint64 `json:"verifier"`   //
}

const (
	lifeSchema = "viablk.life/v1"
	lifeLimit  = 4 << 10 // bytes
)

// newLifeRecord returns the record of this process, which uses the disk of a
// URI. The life is nil at an NBD server.
func newLifeRecord(uri string, life *initiator.Life) *lifeRecord {
	r := &lifeRecord{Schema: lifeSchema, PID: os.Getpid(), Boot: thisBoot(), URI: uri}
	if life != nil {
		r.Writer, r.UUID = block.FormatUUID(life.Writer), block.FormatUUID(life.UUID)
		r.Generation, r.Verifier = life.Generation, life.Verifier
	}
	return r
}

// readLife returns what is in a file, nil if that is nothing.
func readLife(file *os.File) (*lifeRecord, error) {
	text, err := io.ReadAll(io.NewSectionReader(file, 0, lifeLimit))
	if err != nil || len(text) == 0 {
		return nil, err
	}
	r := new(lifeRecord)
	// A process that was killed while it wrote may have left a part of the
	// record before behind its own.
	if err := json.NewDecoder(bytes.NewReader(text)).Decode(r); err != nil {
		return nil, fmt.Errorf("the record is damaged: %w", err)
	}
	if r.Schema != lifeSchema {
		return nil, fmt.Errorf("the record is of another version, %q", r.Schema)
	}
	if _, err := r.life(); err != nil {
		return nil, fmt.Errorf("the record is damaged: %w", err)
	}
	return r, nil
}

// write makes the record what is in a file.
func (r *lifeRecord) write(file *os.File) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := file.WriteAt(append(text, '\n'), 0); err != nil {
		return err
	}
	return file.Truncate(int64(len(text)) + 1)
}

// life returns the life of the record, nil if it has none.
func (r *lifeRecord) life() (*initiator.Life, error) {
	if r.Writer == "" {
		return nil, nil
	}
	l := &initiator.Life{Generation: r.Generation, Verifier: r.Verifier}
	for id, text := range map[*[16]byte]string{&l.Writer: r.Writer, &l.UUID: r.UUID} {
		b, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
		if err != nil || len(b) != len(id) {
			return nil, errors.Join(fmt.Errorf("%q is no UUID", text), err)
		}
		copy(id[:], b)
	}
	return l, nil
}

// thisBoot returns the boot ID of the machine.
func thisBoot() string { return block.FormatUUID(identity.ThisBoot()) }
