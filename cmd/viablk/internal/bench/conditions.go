package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/viablk/viablk/via"
)

// Conditions say under what the figures were measured. Figures of different
// conditions are not comparable.
type Conditions struct {
	Time      time.Time `json:"time"`
	Provider  string    `json:"provider"`
	Level     string    `json:"reliability"`
	Processes int       `json:"processes"`         // 1 or 2; 0 if the other end is the user's
	Network   string    `json:"network,omitempty"` // between the ends
	Bound     bool      `json:"bound"`             // each end has a processor of its own
	CPU       string    `json:"cpu"`
	Cores     int       `json:"cores"`
	Load      float64   `json:"load"` // processes that ran or wanted to, in the minute before
	Kernel    string    `json:"kernel"`
	Go        string    `json:"go"`
	Rounds    int       `json:"rounds"`
	Modes     []Mode    `json:"modes"`
	Waits     []Wait    `json:"waits"`
	Sizes     []int     `json:"sizes"` // bytes
}

// here describes this machine and run.
func here(cfg Config, nic *via.NIC) Conditions {
	return Conditions{
		Time: time.Now().Truncate(time.Second), Provider: nic.Name(), Level: cfg.Level.String(),
		Bound: cfg.Processor != nil, Network: network(cfg),
		CPU: processor(), Cores: runtime.NumCPU(), Kernel: kernel(), Go: runtime.Version(),
		Rounds: cfg.Rounds, Modes: cfg.Modes, Waits: cfg.Waits, Sizes: cfg.Sizes,
	}
}

// load returns the load average of the last minute, or 0 if the system has
// none.
func load() (average float64) {
	b, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(b), &average)
	return average
}

// network names the network between the ends, if yardsticks measure it.
func network(cfg Config) string {
	if slices.ContainsFunc(cfg.Modes, Mode.isYardstick) {
		return "network to " + cfg.Network.String()
	}
	return ""
}

// processor returns the model of the first processor, or the architecture.
func processor() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// kernel returns the release of the running kernel.
func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return runtime.GOOS
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}
