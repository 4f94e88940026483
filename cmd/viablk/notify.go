package main

import (
	"fmt"
	"net"
	"os"
)

// notifyReady tells the service manager that the process serves, as
// sd_notify(3) does. Without a service manager it does nothing.
func notifyReady() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	c, err := net.Dial("unixgram", path)
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("READY=1")); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
