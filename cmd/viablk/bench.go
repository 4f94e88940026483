package main

import "github.com/spf13/cobra"

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.benchVIACommand(), a.benchRegCommand(), a.benchPolicyCommand(), a.benchCopyCommand(), a.benchPeerCommand())
	return cmd
}
