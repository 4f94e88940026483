package backend

import (
	"errors"
	"strings"
	"testing"
)

func TestRefusedSizeIsUsageError(t *testing.T) {
	if n, err := ParseSize("1 GiB"); err != nil || n != 1<<30 {
		t.Errorf("1 GiB is %d, %v", n, err)
	}
	n, err := ParseSize("10gb")
	if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), "write G or GiB") {
		t.Errorf("10gb is %d, %v; want ErrUsage that says what to write", n, err)
	}
}
