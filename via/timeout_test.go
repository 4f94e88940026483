package via

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
)

// A socket that meets the deadline of a context before the context itself tells
// of a timeout all the same.
func TestEarlyDeadlineIsATimeout(t *testing.T) {
	for name, cause := range map[string]error{
		"read":    os.ErrDeadlineExceeded,
		"dial":    context.DeadlineExceeded,
		"already": ErrTimeout,
	} {
		err := timeoutError(context.Background(), fmt.Errorf("scripted: %w", cause))
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, cause) {
			t.Errorf("%s: %v is not a timeout by %v", name, err, cause)
		}
	}
	if err := timeoutError(context.Background(), ErrNotReachable); errors.Is(err, ErrTimeout) {
		t.Errorf("%v is a timeout", err)
	}
}
