package backend

import (
	"errors"
	"testing"

	"github.com/viablk/viablk/target/backend/rbd"
)

func TestImagesOfCeph(t *testing.T) {
	for rest, want := range map[string]rbd.Config{
		"pool/image":                              {Pool: "pool", Image: "image"},
		"pool/image@snap":                         {Pool: "pool", Image: "image", Snapshot: "snap"},
		"pool/image?readonly=1&user=viablk":       {Pool: "pool", Image: "image", ReadOnly: true, User: "viablk"},
		"p/i?namespace=n&conf=/etc/c.conf":        {Pool: "p", Image: "i", Namespace: "n", Conf: "/etc/c.conf"},
		"p/i?steal=1":                             {Pool: "p", Image: "i", Steal: true},
		"p%3F/100%25":                             {Pool: "p?", Image: "100%"},
		"p/i?steal=0&readonly=1&conf=%2Fa%26b%3F": {Pool: "p", Image: "i", ReadOnly: true, Conf: "/a&b?"},
	} {
		got, err := parseImage(rest)
		if err != nil || got != want {
			t.Errorf("rbd:%s: %+v, %v", rest, got, err)
		}
	}
	for spec, says := range map[string]string{
		"rbd:":                       "names no image",
		"rbd:pool":                   "names no image",
		"rbd:/image":                 "names no image",
		"rbd:pool/":                  "names no image",
		"rbd:pool/image@":            "names no image",
		"rbd:pool/@snap":             "names no image",
		"rbd:pool/ns/image":          "names no image",
		"rbd:pool/image@a@b":         "names no image",
		"rbd:p/i%00":                 "zero byte",
		"rbd:p/i?user=a%00":          "zero byte",
		"rbd:p/i?user=client.admin":  "leave client. out",
		"rbd:p/i?cache=1":            `no option "cache"`,
		"rbd:p/i?steal=maybe":        "not 0 or 1",
		"rbd:p/i?readonly=1&steal=1": "no lock for steal=1",
		"rbd:p/i@s?steal=1":          "no lock for steal=1",
	} {
		wantRefusal(t, spec, refusal{ErrUsage, says})
	}
}

// The errors of package rbd are those of this package, too.
func TestErrorsOfCeph(t *testing.T) {
	err := error(&sameError{rbd.ErrInUse, ErrLocked})
	if !errors.Is(err, ErrLocked) || !errors.Is(err, rbd.ErrInUse) || errors.Is(err, ErrUsage) {
		t.Error(err)
	}
}
