package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/internal/transfer"
)

func (a *app) verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify SRC DST",
		Short: "Compare two disks",
		Long: `Compare the content of the disk SRC with that of DST, each a VIA URI, an NBD URI, a
file or a block device. DST may be longer: its rest is not compared, and with --strict it
differs. The exit code is 0 if they are equal and 2 if not; then the first
offset that differs, and how many bytes do, are printed.`,
		Example: `  viablk verify image.raw via+roce://storage/disk0
  viablk verify nbd://old/disk0 nbd://new/disk0 -o json`,
	}
	options := addTransferOptions(cmd)
	strict := cmd.Flags().Bool("strict", false, "a longer DST differs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, err := a.runTransfer(cmd.Context(), options, transfer.Config{Mode: transfer.Compare}, args[0], args[1])
		if err != nil {
			return fmt.Errorf("verify: %w", err)
		}
		rows := [][]string{{"result", "equal"}}
		differs := r.First != nil
		if differs {
			rows = [][]string{
				{"result", "different"},
				{"first difference", fmt.Sprintf("at %d", *r.First)},
				{"bytes that differ", fmt.Sprint(*r.Differing)},
			}
		}
		if r.Longer > 0 {
			rows = append(rows, []string{"not compared", fmt.Sprintf("%d bytes that %s has more", r.Longer, r.Destination)})
			differs = differs || *strict
		}
		if err := a.printTransfer(r, rows); err != nil {
			return err
		}
		if differs {
			return &exit{code: exitFalse}
		}
		return nil
	}
	return cmd
}
