package target_test

import (
	"bytes"
	"testing"

	"github.com/viablk/viablk/internal/block"
	"github.com/viablk/viablk/internal/wire"
	"github.com/viablk/viablk/target"
)

// TestLogoutAborts: the logout of an I/O connection drops the commands that
// have not begun, whatever they wait for, and one that has begun is finished.
// Each gets its answer, then the logout, and the connection ends.
func TestLogoutAborts(t *testing.T) {
	const size = 64 << 10
	device := openDevice(t, "delay:read=50ms:fault:write=hang:memory:4MiB")
	r := newRig(t, target.Config{PoolBytes: 2 * size, MaxIO: size}, target.Export{Name: "disk", Device: device})
	s := r.attach(t, "disk")
	memory, err := s.io.expose(size, readWrite)
	must(t, err)
	copy(memory.Bytes(), bytes.Repeat([]byte{7}, size))
	const commands = 10 // a read, writes in the disk, and more than the pool lets get there
	for i := range commands {
		cmd, payload := transfer(wire.OpWrite, uint64(i*size), memory.segment(0, size)), []byte(nil)
		switch i {
		case 0:
			cmd = inlineRead(0, 4096)
		case 1:
			payload = memory.Bytes()[:4096]
			cmd = inlineWrite(size, payload)
		}
		cmd.Slot, cmd.Export = uint16(i), s.export.Export
		must(t, s.io.command(cmd, payload))
	}
	b := make([]byte, wire.MaxControlSize)
	n, err := (&wire.Logout{ID: 7, PathEpoch: s.io.epoch}).Encode(b)
	must(t, err)
	must(t, s.io.send(b[:n]))
	answers := make(map[wire.Status]int)
	for range commands {
		status, _, err := s.io.status()
		must(t, err)
		answers[status]++
	}
	if answers[wire.StatusAborted] != commands-1 || answers[wire.StatusOK] != 1 {
		t.Errorf("answers %v", answers)
	}
	e, err := s.io.receive()
	must(t, err)
	var a wire.LogoutResponse
	must(t, a.Decode(e.msg))
	if a.ID != 7 {
		t.Errorf("answer %+v", a)
	}
	if events, err := s.io.ends(); events != 0 || err != nil {
		t.Errorf("after the answer: %d events, %v", events, err)
	}
	must(t, s.close())
	disk, err := block.NewDisk(device)
	must(t, err)
	got := make([]byte, commands*size)
	_, err = disk.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got, make([]byte, len(got))) {
		t.Error("an aborted write is on the disk")
	}
	must(t, disk.Close())
}
