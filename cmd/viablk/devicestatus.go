package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbdkernel"
)

// deviceReport is what "viablk status DEVICE" prints.
type deviceReport struct {
	Schema      string `json:"schema"` // viablk.device/v1
	Path        string `json:"path"`
	State       string `json:"state"`       // served, failed, waiting for --reattach, or detached
	Reason      string `json:"reason"`      // why its disk is not connected; else empty
	PID         int    `json:"pid"`         // of the process that serves it; else 0
	Size        int64  `json:"size"`        // bytes
	ReadOnly    bool   `json:"read_only"`   //
	Connections int    `json:"connections"` // that it can have
	Backend     string `json:"backend"`     // the URI of its disk, if viablk attached it
}

// The states of a device.
const (
	stateServed   = "served"
	stateWaiting  = "waiting"
	stateDetached = "detached"
)

// serverState returns the state of a device that viablk attached, by the
// process that serves it, which is 0 if none does.
func serverState(pid int) string {
	if pid == 0 {
		return stateWaiting
	}
	return stateServed
}

// printDevice prints what is known of a device of the kernel. The exit code
// says whether it is served. The process that serves it is asked for the state
// of the disk, unless it is for udev, which waits for no process.
func (a *app) printDevice(ctx context.Context, c config.Config, argument string) error {
	n, err := nbdkernel.ParseNode(argument)
	if err != nil {
		return usage("%w", err)
	}
	state, err := n.State()
	if err != nil {
		return err
	}
	r := deviceReport{
		Schema: "viablk.device/v1", Path: n.String(), State: stateDetached, Size: state.Size,
		ReadOnly: state.ReadOnly, Connections: state.Connections, Backend: state.Backend,
	}
	if state.Attached {
		if r.PID, err = n.Server(); err != nil {
			return err
		}
		if r.State = serverState(r.PID); state.Backend == "" {
			r.State = stateServed // by another program, which says nothing
		}
		if r.PID != 0 && a.output != "udev" {
			r.addDisk(ctx, c)
		}
	}
	switch a.output {
	case "udev":
		err = a.printProperties(&r)
	case "json":
		err = a.printJSON(r)
	default:
		err = a.printTable([][]string{
			{"DEVICE", "STATE", "PID", "SIZE", "CONNECTIONS", "DISK"},
			{r.Path, r.State, strconv.Itoa(r.PID), config.Size(r.Size).String(), strconv.Itoa(r.Connections), r.Backend},
		})
		if err == nil && r.Reason != "" {
			if _, err = fmt.Fprintf(a.stdout, "%s: %s\n", r.Path, visible(r.Reason)); err != nil {
				err = fmt.Errorf("print: %w", err)
			}
		}
	}
	if err == nil && r.State != stateServed {
		err = &exit{code: exitFalse}
	}
	return err
}

// addDisk adds the state of the disk, as the process says that serves the
// device. Users who may not ask it see none.
func (r *deviceReport) addDisk(ctx context.Context, c config.Config) {
	processes, _ := findStatus(ctx, c)
	for i := range processes {
		p := &processes[i]
		if p.Device == nil || p.Device.Path != r.Path {
			continue
		}
		for _, f := range p.faces() {
			if r.Reason = f.Reason; f.State == string(initiator.StateFailed) {
				r.State = f.State
			}
			return
		}
	}
}

// orphans returns the devices of the kernel that viablk attached and whose
// process is gone. Users who may not ask see none.
func orphans() []deviceReport {
	found, _ := nbdkernel.Orphans()
	var list []deviceReport
	for _, d := range found {
		list = append(list, deviceReport{
			Schema: "viablk.device/v1", Path: d.Node.String(), State: stateWaiting, Size: d.Size,
			ReadOnly: d.ReadOnly, Connections: d.Connections, Backend: d.Backend,
		})
	}
	return list
}

// face describes a device whose process is gone.
func (r *deviceReport) face() *faceStatus {
	f := &faceStatus{
		Export: r.Path, Face: "device", State: r.State, Size: r.Size, Places: []string{r.Path, r.Backend},
		Reason: "its process is gone: attach it again with --reattach, or detach it",
	}
	if u, err := config.ParseURI(r.Backend); err == nil && u.Export != "" {
		f.Export = u.Export
		f.Reason = r.Path + ": " + f.Reason
	}
	return f
}

// printProperties prints what a rule of udev imports of a device that viablk
// attached.
func (a *app) printProperties(r *deviceReport) error {
	u, err := config.ParseURI(r.Backend)
	if err != nil {
		return &exit{code: exitFalse} // it is not one
	}
	name := "default"
	if u.Export != "" {
		name = udevName(u.Export)
	}
	if _, err := fmt.Fprintf(a.stdout, "VIABLK_EXPORT=%s\nVIABLK_URI=%s\n", name, u); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// udevName writes a name as udev writes those of its links: what could be taken
// for something else is \xNN.
func udevName(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("#+-.:=@_", c) >= 0 && (c != '.' || i > 0):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}
