package backend

import (
	"fmt"

	"github.com/viablk/viablk/internal/bytesize"
)

// ParseSize reads a number of bytes as [bytesize.Parse] does. The error wraps
// [ErrUsage].
func ParseSize(s string) (int64, error) {
	n, err := bytesize.Parse(s)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrUsage, err)
	}
	return n, nil
}
