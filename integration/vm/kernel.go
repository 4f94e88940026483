package vm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// kernel is a kernel that boots, and an index of its modules.
type kernel struct {
	image   string // path of vmlinux, an ELF file
	modules modules
}

// fetchKernel makes what a boot needs of the kernel's package, in the cache.
func fetchKernel(c cache, packages *debian) (*kernel, error) {
	source := packages.folders[packages.kernel]
	entry := "boot-" + filepath.Base(source)
	err := c.fill([]string{entry}, func(_ []string, in string) error {
		return prepareKernel(source, filepath.Join(in, entry))
	})
	if err != nil {
		return nil, err
	}
	folder := c.folder(entry)
	k := &kernel{image: filepath.Join(folder, "vmlinux")}
	text, err := os.ReadFile(filepath.Join(folder, "modules.json"))
	if err == nil {
		err = json.Unmarshal(text, &k.modules)
	}
	if err != nil {
		return nil, fmt.Errorf("read the index of modules: %w", err)
	}
	for _, m := range k.modules {
		if m.Path != "" {
			m.Path = filepath.Join(source, m.Path)
		}
	}
	return k, nil
}

// prepareKernel makes what a boot needs of an unpacked kernel package.
func prepareKernel(source, into string) error {
	if err := os.Mkdir(into, 0o755); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(source, "boot", "vmlinuz-*"))
	if err != nil || len(images) != 1 {
		return fmt.Errorf("%d kernels in %s, not one: %w", len(images), source, err)
	}
	if err := extractKernel(images[0], filepath.Join(into, "vmlinux")); err != nil {
		return fmt.Errorf("extract %s: %w", images[0], err)
	}
	index, err := indexModules(source)
	if err != nil {
		return err
	}
	text, err := json.Marshal(index)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(into, "modules.json"), text, 0o644)
}

// The header of a bzImage, see the kernel's Documentation/arch/x86/boot.rst.
const (
	setupSectors  = 0x1f1 // byte: sectors of 512 bytes before the protected-mode code, less one
	headerMagic   = 0x202 // "HdrS"
	payloadOffset = 0x248 // uint32: where the compressed kernel is behind those sectors
	payloadLength = 0x24c // uint32: how long it is, bytes
	headerEnd     = 0x250
	sizeLength    = 4 // the size of the kernel stands behind its compressed data
)

// extractKernel takes the ELF file out of a bzImage. Emulated, the
// decompression at boot takes longer than the rest of the boot.
func extractKernel(from, to string) error {
	image, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	payload, decompress, err := compressedKernel(image)
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	var stderr bytes.Buffer
	cmd := exec.Command(decompress, "-d", "-c")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(payload), out, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", decompress, err, &stderr)
	}
	return out.Close()
}

// compressions are the programs that decompress kernels, by how these begin.
var compressions = map[string]string{
	"\xfd7zXZ\x00":     "xz",
	"\x28\xb5\x2f\xfd": "zstd",
}

// compressedKernel finds the compressed kernel in a bzImage, and the program
// that decompresses it.
func compressedKernel(image []byte) (payload []byte, program string, err error) {
	if len(image) < headerEnd || string(image[headerMagic:headerMagic+4]) != "HdrS" {
		return nil, "", errors.New("it is no bzImage")
	}
	start := (uint64(image[setupSectors]) + 1) * 512
	start += uint64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	end := start + uint64(binary.LittleEndian.Uint32(image[payloadLength:]))
	if end > uint64(len(image)) {
		return nil, "", errors.New("the compressed kernel ends behind the image")
	}
	payload = image[start:end]
	for magic, program := range compressions {
		if bytes.HasPrefix(payload, []byte(magic)) && len(payload) >= len(magic)+sizeLength {
			return payload[:len(payload)-sizeLength], program, nil
		}
	}
	return nil, "", errors.New("the kernel is compressed neither by xz nor by zstd")
}
