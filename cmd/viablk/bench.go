package main

import "github.com/spf13/cobra"

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Benchmark disks, and VIA, registration and copies on this machine",
	}
	cmd.AddCommand(a.benchVIACommand(), a.benchRegCommand(), a.benchPolicyCommand(), a.benchCopyCommand(), a.benchDiskCommand(), a.benchPeerCommand())
	return cmd
}
