package main

import (
	"errors"
	"strconv"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbdkernel"
)

// deviceReport is what "viablk status DEVICE" prints.
type deviceReport struct {
	Schema      string `json:"schema"` // viablk.device/v1
	Path        string `json:"path"`
	State       string `json:"state"`       // served, waiting for --reattach, or detached
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

// printDevice prints what is known of a device of the kernel. The exit code says
// whether it is served.
func (a *app) printDevice(argument string) error {
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
		if r.State = stateWaiting; r.PID != 0 || state.Backend == "" { // others say nothing
			r.State = stateServed
		}
	}
	if a.output == "json" {
		err = a.printJSON(r)
	} else {
		err = a.printTable([][]string{
			{"DEVICE", "STATE", "PID", "SIZE", "CONNECTIONS", "DISK"},
			{r.Path, r.State, strconv.Itoa(r.PID), config.Size(r.Size).String(), strconv.Itoa(r.Connections), r.Backend},
		})
	}
	if r.State != stateServed {
		err = errors.Join(err, &exit{code: exitFalse})
	}
	return err
}
