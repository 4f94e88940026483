package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// versionInfo is what "viablk version" prints.
type versionInfo struct {
	Schema   string `json:"schema"` // viablk.version/v1
	Version  string `json:"version"`
	Revision string `json:"revision"` // of the sources; empty if built outside their repository
	Modified bool   `json:"modified"` // the sources differed from the revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// release and revision are set by the linker for a package, which is the same
// out of any kind of checkout.
var release, revision string

// version reads what the go command, or for a package the linker, wrote into
// the binary.
func version() versionInfo {
	v := versionInfo{
		Schema: "viablk.version/v1", Version: "unknown",
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if build.Main.Version != "" {
		v.Version = build.Main.Version
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	if release != "" {
		v.Version, v.Revision = release, revision
	}
	return v
}

// versionLine is what people read.
func versionLine() string {
	v := version()
	return strings.Join([]string{"viablk", v.Version, v.Go, v.Platform}, "  ") + "\n"
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			v := version()
			if a.output == "json" {
				return a.printJSON(v)
			}
			if _, err := fmt.Fprint(a.stdout, versionLine()); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return nil
		},
	}
}
