package config

import (
	"strings"
	"testing"
)

// A path is another way to the same disk, with the same protection.
func TestPathsOfDisk(t *testing.T) {
	const shm, roce, sealed = "via+shm:///d?socket=/s", "via+roce://192.0.2.1/d", "via+roce://192.0.2.1/d?tls-certificates=/c"
	for _, c := range []struct{ disk, path, want string }{
		{shm, "via+roce://192.0.2.1", ""},
		{shm, "via+roce://192.0.2.1/d", ""},
		{roce, "via+shm:///?socket=/s", ""},
		{roce, "via+roce://192.0.2.2,192.0.2.3/d", ""},
		{roce, "via+roce://192.0.2.2?device=192.0.2.9", ""},
		{sealed, "via+roce://192.0.2.2", ""},
		{"via+verbs://192.0.2.1/d", "via+verbs://192.0.2.2", ""},
		{"via+verbs://192.0.2.1/d", "via+roce://192.0.2.2", "via+verbs cannot share"},
		{roce, "via+verbs://192.0.2.2", "via+verbs cannot share"},
		{"via+verbs://192.0.2.1/d", "via+verbs://192.0.2.2?device=mlx5_1", "via+verbs cannot share"},
		{sealed, "via+shm:///?socket=/s", "via+shm has no certificates"},
		{shm, "via+roce://192.0.2.1?tls-certificates=/c", "a path has the certificates of its disk"},
		{roce, "via+roce://192.0.2.2?tls-hostname=h", "a path has the certificates of its disk"},
		{roce, "via+roce://192.0.2.2/other", `it names the export "other"`},
		{roce, "nbd://192.0.2.2/d", "only a disk over VIA"},
		{"nbd://192.0.2.2/d", "via+roce://192.0.2.1", "only a disk over VIA"},
		{roce, "via+roce://0.0.0.0", "only good to listen on"},
		{roce, "192.0.2.2", "this is no URI"},
	} {
		u, err := ParseURI(c.disk)
		if err != nil {
			t.Fatal(err)
		}
		p, err := u.Path(c.path)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && p.Export != u.Export {
			t.Errorf("%s to %s: %v, %v, want %q", c.path, c.disk, p, err, c.want)
		}
	}
}

// The configuration is refused if one of the paths cannot be.
func TestValidatePaths(t *testing.T) {
	for _, c := range []struct {
		change func(*Attach)
		want   string
	}{
		{func(*Attach) {}, ""},
		{func(a *Attach) { a.Paths = append(a.Paths, "via+shm:///?socket=/s") }, ""},
		{func(a *Attach) { a.Paths = append(a.Paths, "x") }, "this is no URI"},
		{func(a *Attach) { a.CtrlLossTimeout = 0 }, "set attach.ctrl_loss_timeout"},
		{func(a *Attach) { a.Paths = append(a.Paths, "via+roce://a,b,c,d,e,f,g") }, "9 hosts of a target"},
		{func(a *Attach) { a.Certificates, a.Paths = "/c", []string{"via+shm:///?socket=/s"} }, "via+shm has no certificates"},
		{func(a *Attach) { a.Certificates, a.URI = "/c", "via+shm:///d?socket=/s" }, "certificates protect no session over via+shm"},
	} {
		config := Default()
		config.Attach.URI, config.Attach.Paths = "via+roce://192.0.2.1/d", []string{"via+roce://192.0.2.2"}
		c.change(&config.Attach)
		err := config.Validate(nil)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", config.Attach.Paths, err, c.want)
		}
	}
}
