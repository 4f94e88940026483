package vm

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
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
	for want, magic := range map[string]string{"xz": "\xfd7zXZ\x00", "zstd": "\x28\xb5\x2f\xfd"} {
		payload := magic + " and so on"
		got, program, err := compressedKernel(append(bzImage(payload+"size"), "behind"...))
		if err != nil || string(got) != payload || program != want {
			t.Errorf("got %q for %s, %v", got, program, err)
		}
	}
	good := bzImage("\xfd7zXZ\x00 and so on")
	long := slices.Clone(good)
	binary.LittleEndian.PutUint32(long[payloadLength:], 0xffffffff)
	for want, image := range map[string][]byte{
		"no bzImage":            append([]byte("MZ"), make([]byte, 600)...),
		"it is no":              good[:headerEnd-1],
		"behind the image":      long,
		"neither by xz nor":     bzImage("\x1f\x8b gzip"),
		"ends behind the image": good[:len(good)-1],
		"the kernel is comp":    bzImage(""),
		"by zstd":               bzImage("\x28\xb5\x2f\xfdabc"), // without its size
	} {
		if _, _, err := compressedKernel(image); err == nil || !strings.Contains(err.Error(), want) {
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
		"ext4":          {Path: "ext4.ko", Depends: []string{"jbd2"}, Before: []string{"crc32c", "builtin"}},
		"jbd2":          {}, // part of the kernel
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
	if names["ext4"].File == "" || names["jbd2"].File != "" {
		t.Errorf("ext4 is in %q, jbd2 in %q", names["ext4"].File, names["jbd2"].File)
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

// A newer kernel's modules are compressed, or part of it.
func TestModulesOfNewerKernel(t *testing.T) {
	source := pack(t, nil, "lib/modules/6/kernel/drivers/one.ko", "lib/modules/6/kernel/two.ko")
	folder := filepath.Join(source, "lib/modules/6")
	_, err := run(folder, "xz", "kernel/two.ko")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "modules.builtin"), []byte("kernel/fs/virtio-pci.ko\nkernel/ext2.ko\n"), 0o600))
	must(t, decompressModules(source))
	for _, name := range []string{"drivers/one.ko", "two.ko"} {
		if _, err := os.Stat(filepath.Join(folder, "kernel", name)); err != nil {
			t.Error(err)
		}
	}
	must(t, decompressModules(t.TempDir()))
	index := make(modules)
	must(t, index.addBuiltIn(source))
	closed, err := index.closure([]string{"virtio_pci", "ext2"})
	if err != nil || len(closed) != 2 || closed[0].File != "" {
		t.Errorf("got %+v, %v", closed, err)
	}
	must(t, os.WriteFile(filepath.Join(folder, "kernel", "broken.ko.xz"), nil, 0o600))
	if err := decompressModules(source); err == nil || !strings.Contains(err.Error(), "broken.ko.xz") {
		t.Errorf("a broken module: %v", err)
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
