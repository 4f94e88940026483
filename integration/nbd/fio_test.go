package nbd

import (
	"testing"

	"github.com/viablk/viablk/integration/testbed"
)

func TestFioVerifiesWhatItWrote(t *testing.T) {
	for _, c := range []struct {
		name string
		disk func(testing.TB) testbed.Disk
		args []string
	}{
		{"sizes from 512 to 1 MiB", testbed.MemoryDisk("64MiB"), testbed.WithVerify("--rw=randrw", "--bsrange=512-1m", "--iodepth=32", "--size=64m")},
		{"one size, deep", testbed.FileDisk(32 << 20), testbed.WithVerify("--rw=randrw", "--bs=4k", "--iodepth=128", "--size=16m", "--fsync=64")},
		{"four connections", testbed.MemoryDisk("64MiB"), testbed.WithVerify("--rw=randrw", "--bsrange=4k-256k", "--bs_unaligned=0", "--iodepth=16", "--size=16m",
			"--numjobs=4", "--offset_increment=16m", "--group_reporting")},
		{"trims between", testbed.FileDisk(32 << 20), []string{"--rw=randtrimwrite", "--bs=64k", "--iodepth=16", "--size=32m"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			testbed.EachWay(t, c.disk, func(t *testing.T, s testbed.Service) { testbed.Fio(t, s.URI, c.args...) })
		})
	}
}
