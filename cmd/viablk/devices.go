package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/via/verbs"
)

// deviceList is what "viablk devices" prints.
type deviceList struct {
	Schema  string       `json:"schema"` // viablk.devices/v1
	Devices []rdmaDevice `json:"devices"`
}

// rdmaDevice is an RDMA device of this host.
type rdmaDevice struct {
	Name       string   `json:"name"`
	Port       int      `json:"port"`
	State      string   `json:"state"`
	Link       string   `json:"link"`
	MTU        int      `json:"mtu"` // path MTU, bytes
	GUID       string   `json:"guid"`
	Memory     string   `json:"memory"` // locked, or on demand
	Interfaces []string `json:"interfaces"`
}

// rdmaReport is what a process did with an RDMA device. Each call is one into
// libibverbs, for a batch.
type rdmaReport struct {
	Device   string `json:"device"`
	Posts    uint64 `json:"post_calls"`
	Polls    uint64 `json:"poll_calls"`
	Arms     uint64 `json:"arm_calls"`
	Wakes    uint64 `json:"events"`   // that ended a sleep
	Messages uint64 `json:"messages"` // sends and RDMA operations
	Receives uint64 `json:"receives"` // posted
}

// rdmaReports returns those of this process.
func rdmaReports() []rdmaReport {
	var out []rdmaReport
	for _, s := range overVerbs.Statistics() {
		out = append(out, rdmaReport{s.Device, s.Posts, s.Polls, s.Arms, s.Wakes, s.Messages, s.Receives})
	}
	return out
}

func (a *app) devicesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "devices",
		Short: "List the RDMA devices of this host",
		Long: `List the RDMA devices of this host: what via+verbs:// can use. The exit code is 78
if there is none, or if this build has no RDMA verbs: the package viablk-verbs has
them.`,
		RunE: func(*cobra.Command, []string) error { return a.printDevices() },
	}
}

// printDevices prints the RDMA devices. None is an error, which says what makes
// one.
func (a *app) printDevices() error {
	found, err := verbs.Devices()
	if err != nil {
		return fmt.Errorf("list RDMA devices: %w", err)
	}
	list := deviceList{Schema: "viablk.devices/v1", Devices: []rdmaDevice{}}
	rows := [][]string{{"DEVICE", "PORT", "STATE", "LINK", "MTU", "MEMORY", "INTERFACES", "GUID"}}
	for _, d := range found {
		memory := "locked"
		if d.OnDemand {
			memory = "on demand"
		}
		x := rdmaDevice{d.Name, d.Port, d.State, d.Link, d.MTU, fmt.Sprintf("%016x", d.GUID), memory, d.Interfaces}
		list.Devices = append(list.Devices, x)
		rows = append(rows, []string{
			x.Name, strconv.Itoa(x.Port), x.State, x.Link, strconv.Itoa(x.MTU), x.Memory, strings.Join(x.Interfaces, ","), x.GUID,
		})
	}
	if a.output == "json" {
		return a.printJSON(list)
	}
	return a.printTable(rows)
}

// rdmaAddress returns an address of this host that an RDMA device has: those of
// loopback lead to none.
func rdmaAddress() (string, error) {
	found, err := verbs.Devices()
	if err != nil {
		return "", fmt.Errorf("find an RDMA device: %w", err)
	}
	for _, d := range found {
		for _, name := range d.Interfaces {
			i, err := net.InterfaceByName(name)
			if err != nil {
				continue
			}
			addresses, err := i.Addrs()
			if err != nil {
				continue
			}
			for _, a := range addresses {
				if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
					return n.IP.String(), nil
				}
			}
		}
	}
	return "", fmt.Errorf("no RDMA device has an IP address: %w", verbs.ErrNoDevice)
}
