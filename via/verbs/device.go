//go:build verbs && cgo

package verbs

// #cgo LDFLAGS: -lrdmacm -libverbs
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"github.com/viablk/viablk/via"
)

// Built reports whether this build has the provider.
const Built = true

// portStates are the names of port states, by enum ibv_port_state.
var portStates = [...]string{"nop", "down", "init", "armed", "active", "active, deferred"}

const portActive = C.IBV_PORT_ACTIVE

// maxPorts bounds the ports of a device that openDevice inspects.
const maxPorts = 8

// device is an open device and its limits.
type device struct {
	name    string
	context *C.struct_ibv_context
	limits  C.struct_shim_limits
}

// errno converts the result of a call to the shim to an error; 0 is nil.
func errno(code C.int) error {
	if code == 0 {
		return nil
	}
	if code < 0 {
		code = -code
	}
	return syscall.Errno(code)
}

// eachDevice calls do for each device of the host until it returns false.
func eachDevice(do func(name string, d *C.struct_ibv_device) bool) error {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		if err == syscall.ENOSYS || err == syscall.EPERM { // the module is not loaded, or not visible
			return nil
		}
		return fmt.Errorf("list RDMA devices: %w", err)
	}
	defer C.ibv_free_device_list(list)
	// Safety: the library returned an array of n pointers, valid until it is
	// freed.
	for _, d := range unsafe.Slice(list, int(n)) {
		if !do(C.GoString(C.ibv_get_device_name(d)), d) {
			break
		}
	}
	return nil
}

// openDevice opens a device at its first active port, or else its first port.
func openDevice(name string, d *C.struct_ibv_device) (*device, error) {
	context, err := C.ibv_open_device(d)
	if context == nil {
		return nil, fmt.Errorf("open RDMA device %s: %w", name, err)
	}
	dev := &device{name: name, context: context}
	found := false
	for port := C.int(1); port <= maxPorts; port++ {
		var l C.struct_shim_limits
		if C.shim_limits(context, port, &l) != 0 {
			break
		}
		if !found || l.state == portActive {
			dev.limits, found = l, true
		}
		if l.state == portActive {
			break
		}
	}
	if !found {
		_ = dev.close()
		return nil, fmt.Errorf("open RDMA device %s: it has no port: %w", name, ErrNoDevice)
	}
	return dev, nil
}

func (d *device) close() error { return errno(C.ibv_close_device(d.context)) }

// interfaces lists the network interfaces of a device.
func interfaces(name string) []string {
	found, _ := filepath.Glob(filepath.Join("/sys/class/infiniband", name, "device/net/*")) // the pattern is well-formed
	for i := range found {
		found[i] = filepath.Base(found[i])
	}
	if len(found) == 0 { // a software device names its parent
		if parent, err := os.ReadFile(filepath.Join("/sys/class/infiniband", name, "parent")); err == nil {
			found = append(found, strings.TrimSpace(string(parent)))
		}
	}
	return found
}

// describe returns the public description of a device.
func (d *device) describe() Device {
	l := &d.limits
	link := "Ethernet"
	if l.link_layer == C.IBV_LINK_LAYER_INFINIBAND {
		link = "InfiniBand"
	}
	state := "unknown"
	if int(l.state) < len(portStates) {
		state = portStates[l.state]
	}
	return Device{
		Name: d.name, Port: int(l.port), State: state, Link: link, MTU: int(l.mtu),
		GUID: bits.ReverseBytes64(uint64(l.guid)), OnDemand: l.on_demand != 0, Interfaces: interfaces(d.name),
	}
}

// Devices lists the RDMA devices of this host. If there are none, ErrNoDevice
// says how to create one.
func Devices() ([]Device, error) {
	var out []Device
	var failed error
	err := eachDevice(func(name string, d *C.struct_ibv_device) bool {
		dev, err := openDevice(name, d)
		if err != nil {
			failed = err
			return true
		}
		out = append(out, dev.describe())
		return dev.close() == nil
	})
	switch {
	case err != nil || len(out) > 0:
		return out, err
	case failed != nil:
		return nil, failed
	}
	return nil, errNone
}

var errNone = fmt.Errorf("%w: install the driver of the network card and ibverbs-providers, or make a software device: rdma link add rxe0 type rxe netdev INTERFACE", ErrNoDevice)

// find opens the device with a name, or the first active one.
func find(name string) (*device, error) {
	var found *device
	var failed error
	err := eachDevice(func(n string, d *C.struct_ibv_device) bool {
		if name != "" && n != name {
			return true
		}
		dev, err := openDevice(n, d)
		switch {
		case err != nil:
			failed = err
		case dev.limits.state != portActive:
			failed = fmt.Errorf("%w: port %d of RDMA device %s: bring its network interface up", ErrPortDown, dev.limits.port, n)
			_ = dev.close()
		default:
			found = dev
		}
		return found == nil
	})
	switch {
	case found != nil:
		return found, nil
	case err != nil:
		return nil, err
	case failed != nil:
		return nil, failed
	case name != "":
		return nil, fmt.Errorf("%w: %w %q: viablk devices lists those of this host", via.ErrInvalidParameter, ErrNoDevice, name)
	}
	return nil, errNone
}
