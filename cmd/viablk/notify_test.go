package main

import (
	"net"
	"path/filepath"
	"testing"
)

func TestNotifyReady(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := notifyReady(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 64)
	n, err := manager.Read(b)
	if err != nil || string(b[:n]) != "READY=1" {
		t.Errorf("the service manager got %q, %v", b[:n], err)
	}
	manager.Close()
	if err := notifyReady(); err == nil {
		t.Error("a service manager that is gone is no error")
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notifyReady(); err != nil {
		t.Errorf("without a service manager: %v", err)
	}
}
