package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// The states that the service manager receives, as in sd_notify(3).
const (
	stateReady    = "READY=1"
	stateReloads  = "RELOADING=1"
	stateStopping = "STOPPING=1"
	stateAlive    = "WATCHDOG=1"
	stateMainPID  = "MAINPID=" // and the process
)

// notify tells the service manager a state. Without a service manager it does
// nothing.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path)
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// watchdogTime returns how long the service manager waits for a keepalive of
// the process pid before it ends it; 0 is for ever.
func watchdogTime(getenv func(string) string, pid int) (time.Duration, error) {
	limit, owner := getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID")
	if limit == "" || owner != "" && owner != strconv.Itoa(pid) {
		return 0, nil
	}
	n, err := strconv.ParseInt(limit, 10, 64)
	if err != nil || n < 1 || n > int64(maximumWatchdog/time.Microsecond) {
		return 0, usage("WATCHDOG_USEC=%q is not a number of microseconds up to %v", limit, maximumWatchdog)
	}
	return time.Duration(n) * time.Microsecond, nil
}

const maximumWatchdog = 24 * time.Hour

// watchdog is the part that sends keepalives, twice in the time that the
// service manager waits for one. Before each it asks for the status, as
// every client may: a process whose locks are stuck gives none.
func watchdog(limit time.Duration, status func() processStatus) part {
	return part{name: "watchdog", serve: func(ctx context.Context) error {
		interval := time.NewTicker(max(limit/2, time.Microsecond))
		defer interval.Stop()
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-interval.C:
			}
			_ = status()
			if err := notify(stateAlive); err != nil {
				return err
			}
		}
	}}
}
