package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNbdtab(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nbdtab")
	text := `# device host export options
nbd0	storage	disk0	persist,_viablk_transport=roce,connections=2,timeout=30,_other=1  # a comment
nbd1 /run/a,b disk/1 _viablk_transport=shm,bs=4096,unix,swap

nbd2 192.0.2.1 - port=4000,_viablk_transport=roce
nbd3 storage disk bs=512
nbd4 storage disk _viablk_transport=roce,timeout=soon
nbd5 storage disk
nbd6 storage disk _viablk_transport=roce,_viablk_qd=64
nbd7 storage disk _viablk_transport=shm
nbd8 storage disk _viablk_transport=roce,certfile=x
nbd10 storage disk _viablk_transport=roce,port=x
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for device, want := range map[string]map[string]string{
		"nbd0": {
			"attach.device": "/dev/nbd0", "attach.uri": "via+roce://storage/disk0", "attach.connections": "2", "attach.io_timeout": "30s",
		},
		"nbd1": {"attach.device": "/dev/nbd1", "attach.uri": "via+shm:///disk/1?socket=/run/a%2Cb", "attach.minimum_block": "4096"},
		"nbd2": {"attach.device": "/dev/nbd2", "attach.uri": "via+roce://192.0.2.1:4000/"},
	} {
		if got, err := Nbdtab(path, device); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v", device, got, err)
		}
	}
	for device, want := range map[string]string{
		"nbd3":  ":6: the line is one of nbd-client: it has no option _viablk_transport=shm",
		"nbd4":  `:7: option "timeout=soon": it is no number of seconds`,
		"nbd5":  ":8: 3 fields are not device, host, export and options",
		"nbd6":  `:9: option "_viablk_qd=64": it is unknown`,
		"nbd7":  ":10: ",
		"nbd8":  `:11: option "certfile=x": it is unknown`,
		"nbd9":  ": there is no line of nbd9",
		"nbd10": ":12: ",
	} {
		if got, err := Nbdtab(path, device); err == nil || !strings.HasPrefix(err.Error(), path+want) {
			t.Errorf("%s: %v, %v", device, got, err)
		}
	}
	if _, err := Nbdtab(path+"x", "nbd0"); err == nil || !strings.Contains(err.Error(), "no such file or directory") {
		t.Error(err)
	}
}

func FuzzNbdtab(f *testing.F) {
	f.Add("nbd0 storage disk0 _viablk_transport=roce,connections=2,timeout=30,port=1")
	f.Add("nbd0 /run/t disk _viablk_transport=shm,bs=4096")
	f.Fuzz(func(t *testing.T, line string) {
		settings, err := tabSettings(strings.Fields(line))
		if err != nil {
			return
		}
		if u, err := ParseURI(settings["attach.uri"]); err != nil || !u.VIA() {
			t.Errorf("%q: %v, %v", line, u, err)
		}
	})
}
