package testbed

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/viablk/viablk/initiator"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/target"
	"github.com/viablk/viablk/target/limit"
)

// Status is the status that a process prints, when it is ready and when
// it is asked.
type Status struct {
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Admin   string `json:"admin"`
	Metrics string `json:"metrics"` // URL
	Exports []struct {
		Name     string   `json:"name"`
		Size     int64    `json:"size"`
		ReadOnly bool     `json:"read_only"`
		URIs     []string `json:"uris"`
	} `json:"exports"`
	NBD   *nbd.Status `json:"nbd"`
	Disks []struct {
		Name          string  `json:"name"`
		OldestRequest float64 `json:"oldest_request_seconds"`
	} `json:"disks"`
	Targets    []target.Status    `json:"targets"`
	Initiators []initiator.Status `json:"initiators"`
	Limits     []LimitStatus      `json:"limits"`
	Network    []NetworkStatus    `json:"network"`
}

// LimitStatus is an export with limits in a report.
type LimitStatus struct {
	Export string `json:"export"`
	limit.Status
}

// NetworkStatus is a UDP address of RoCE in a report.
type NetworkStatus struct {
	Local        string `json:"local"`
	Segmentation *bool  `json:"segmentation_offload"`
	Coalescing   *bool  `json:"coalescing"`
	Sent         uint64 `json:"packets_sent"`
	SendCalls    uint64 `json:"send_calls"`
	NetworkDrops
	Manager struct {
		Malformed  uint64 `json:"malformed"`
		UnknownID  uint64 `json:"unknown_id"`
		BadSource  uint64 `json:"bad_source"`
		Refused    uint64 `json:"refused"`
		Challenged uint64 `json:"challenged"`
		Evicted    uint64 `json:"evicted"`
		Pending    int    `json:"pending"`
	} `json:"connection_manager"`
	Links []struct {
		Peer          string  `json:"peer"`
		QueuePair     uint32  `json:"queue_pair"`
		MTU           int     `json:"path_mtu"`
		RTT           float64 `json:"rtt_us"`
		Sent          uint64  `json:"packets_sent"`
		Retransmitted uint64  `json:"retransmitted"`
		Closed        bool    `json:"closed"`
	} `json:"links"`
}

// NetworkDrops are packets that a RoCE address took notice of and dropped.
type NetworkDrops struct {
	Overrun   uint64 `json:"overrun"`
	Malformed uint64 `json:"malformed"`
	BadICRC   uint64 `json:"bad_icrc"`
	Unknown   uint64 `json:"unknown"`
	BadSource uint64 `json:"bad_source"`
	Refused   uint64 `json:"refused"`
	QueueFull uint64 `json:"queue_full"`
}

// Dropped returns how many packets the address dropped in all.
func (n *NetworkStatus) Dropped() uint64 {
	d, m := &n.NetworkDrops, &n.Manager
	return d.Overrun + d.Malformed + d.BadICRC + d.Unknown + d.BadSource + d.Refused + d.QueueFull +
		m.Malformed + m.UnknownID + m.BadSource + m.Refused + m.Challenged + m.Evicted
}

// Status asks the process.
func (p *Process) Status() Status {
	p.t.Helper()
	return StatusAt(p.t, p.ready.Admin)
}

// StatusAt asks the process with an admin socket. It reads up to the end of the
// connection, whose descriptor the process has closed then: the next look at
// its files does not see it. "viablk status" would start a process for each
// poll; its own tests are scripts of cmd/viablk.
func StatusAt(t testing.TB, admin string) Status {
	t.Helper()
	var status Status
	if err := json.Unmarshal(askAdmin(t, admin, "/status"), &status); err != nil {
		t.Fatalf("ask %q: %v", admin, err)
	}
	return status
}

// CollectGarbage has the process collect its garbage, which one that is idle
// does every two minutes.
func (p *Process) CollectGarbage() {
	p.t.Helper()
	askAdmin(p.t, p.ready.Admin, "/debug/pprof/heap?gc=1")
}

// askAdmin asks an admin socket.
func askAdmin(t testing.TB, admin, what string) []byte {
	t.Helper()
	c, err := net.Dial("unix", admin)
	Must(t, err)
	defer c.Close()
	Must(t, c.SetDeadline(time.Now().Add(WaitLimit)))
	_, err = io.WriteString(c, "GET "+what+" HTTP/1.1\r\nHost: viablk\r\nConnection: close\r\n\r\n")
	Must(t, err)
	all := bufio.NewReader(c)
	response, err := http.ReadResponse(all, nil)
	Must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("ask %q for %s: %s: %v", admin, what, response.Status, err)
	}
	_, err = io.Copy(io.Discard, all)
	Must(t, err)
	return body
}
