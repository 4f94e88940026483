package vm

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/viablk/viablk/integration/vm/agent"
)

// bzImage makes a kernel image with a payload behind two sectors and an offset.
func bzImage(payload string) []byte {
	image := make([]byte, 3*512+100)
	image[setupSectors] = 2
	copy(image[headerMagic:], "HdrS")
	binary.LittleEndian.PutUint32(image[payloadOffset:], 100)
	binary.LittleEndian.PutUint32(image[payloadLength:], uint32(len(payload)))
	return append(image, payload...)
}

func TestKernelInImage(t *testing.T) {
	const payload = "\xfd7zXZ\x00 and so on"
	got, err := compressedKernel(append(bzImage(payload), "behind"...))
	if err != nil || string(got) != payload {
		t.Errorf("got %q, %v", got, err)
	}
	good := bzImage(payload)
	long := slices.Clone(good)
	binary.LittleEndian.PutUint32(long[payloadLength:], 0xffffffff)
	for want, image := range map[string][]byte{
		"no bzImage":             append([]byte("MZ"), make([]byte, 600)...),
		"it is no":               good[:headerEnd-1],
		"behind the image":       long,
		"not compressed by xz":   bzImage("\x1f\x8b gzip"),
		"ends behind the image":  good[:len(good)-1],
		"the kernel is not comp": bzImage(""),
	} {
		if _, err := compressedKernel(image); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestModuleDescribesItself(t *testing.T) {
	m := parseModule("license=GPL\x00alias=fs-ext4\x00alias=pci:v00001AF4d*\x00softdep=pre: crc32c other post: last\x00" +
		"depends=jbd2,crc16,mb-cache\x00alias=ext3\x00")
	if want := []string{"jbd2", "crc16", "mb_cache"}; !slices.Equal(m.Depends, want) {
		t.Errorf("depends on %v, want %v", m.Depends, want)
	}
	if want := []string{"fs-ext4", "ext3"}; !slices.Equal(m.Aliases, want) {
		t.Errorf("is known as %v, want %v", m.Aliases, want)
	}
	if want := []string{"crc32c", "other"}; !slices.Equal(m.Before, want) {
		t.Errorf("wants %v, want %v", m.Before, want)
	}
}

func TestModulesThatModulesNeed(t *testing.T) {
	index := modules{
		"ext4":          {Depends: []string{"jbd2"}, Before: []string{"crc32c", "builtin"}},
		"jbd2":          {},
		"crc32c_intel":  {Aliases: []string{"crypto-crc32c", "crc32c"}},
		"crc32c_sw":     {Aliases: []string{"crc32c"}},
		"rdma_rxe":      {Depends: []string{"ib_core"}},
		"ib_core":       {Depends: []string{"ib_core"}}, // a circle is no way to hang
		"crc32_generic": {},
		"broken":        {Depends: []string{"nowhere"}},
	}
	got, err := index.closure([]string{"ext4", "rdma-rxe", "jbd2"})
	must(t, err)
	names := make(map[string]agent.Module)
	for _, m := range got {
		names[m.Name] = m
	}
	if len(names) != len(got) || len(got) != 7 {
		t.Errorf("%d modules, want 7: %v", len(got), got)
	}
	if want := []string{"crc32c_intel", "crc32c_sw"}; !slices.Equal(names["ext4"].Wants, want) {
		t.Errorf("ext4 wants %v, want %v", names["ext4"].Wants, want)
	}
	if want := []string{"ib_core", "crc32_generic"}; !slices.Equal(names["rdma_rxe"].Needs, want) {
		t.Errorf("rdma_rxe needs %v, want %v", names["rdma_rxe"].Needs, want)
	}
	for _, name := range []string{"unknown", "broken"} {
		if _, err := index.closure([]string{name}); err == nil || !strings.Contains(err.Error(), "the kernel has no module") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// The archive is read by the rules of its format.
func TestArchive(t *testing.T) {
	var out bytes.Buffer
	w := &cpioWriter{to: &out}
	w.write("etc", cpioFolder|0o755, 0, nil)
	w.writeDevice("dev/console", cpioDevice|0o600, 0, nil, 5, 1)
	w.write("etc/hello", cpioFile|0o644, 5, strings.NewReader("hello and more"))
	w.write("sh", cpioSymlink|0o777, 4, strings.NewReader("dash"))
	must(t, w.close())
	const zero = "00000000"
	header := func(inode, mode, size, major, minor, name string) string {
		return "070701" + inode + mode + zero + zero + "00000001" + zero + size + zero + zero + major + minor + name + zero
	}
	want := header("00000001", "000041ED", zero, zero, zero, "00000004") + "etc\x00" + "\x00\x00" +
		header("00000002", "00002180", zero, "00000005", "00000001", "0000000C") + "dev/console\x00" + "\x00\x00" +
		header("00000003", "000081A4", "00000005", zero, zero, "0000000A") + "etc/hello\x00" + "hello\x00\x00\x00" +
		header("00000004", "0000A1FF", "00000004", zero, zero, "00000003") + "sh\x00" + "\x00\x00\x00" + "dash" +
		header("00000005", zero, zero, zero, zero, "0000000B") + cpioTrailer + "\x00" + "\x00\x00\x00"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
	w = &cpioWriter{to: &out}
	w.write("short", cpioFile|0o644, 5, strings.NewReader("four"))
	if w.close() == nil {
		t.Error("a file that is shorter than it was is no error")
	}
	w = &cpioWriter{to: &out}
	w.write("large", cpioFile|0o644, 1<<32, nil)
	if w.close() == nil {
		t.Error("a file of 4 GiB is no error")
	}
}
