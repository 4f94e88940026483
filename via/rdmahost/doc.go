// Package rdmahost holds the parts of connection setup that the providers
// over RDMA share, whichever connection manager they use: the host part of an
// address, and the connection requests of a listener.
package rdmahost

import "time"

// ServicePort is the service of viablk in the TCP port space of the connection
// manager. A host that names no service means this one.
const ServicePort = 10809

// DefaultTimeout is the default interval between the retransmissions of a
// queue pair whose peer acknowledges nothing.
const DefaultTimeout = 500 * time.Millisecond
