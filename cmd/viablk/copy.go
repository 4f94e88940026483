package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/internal/transfer"
)

func (a *app) copyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "copy SRC DST",
		Short: "Copy a disk to another",
		Long: `Copy the disk SRC to DST. Each is a VIA URI, an NBD URI, a file or a block device. A
file that is not there is made; any other DST has to have the size of SRC at least, and
keeps what it has beyond that. Nothing is written before both disks are open and fit,
and the command succeeds when all is durable.

Zeroes of SRC, as it tells or as they are read, become holes of DST where it has them,
unless --allocate is set. DST is not written where it says that it is zeroes, too.

When a server of a disk goes away the copy waits for --ctrl-loss-tmo, and goes on.
After an end before that, --resume writes only what differs: it reads what DST has and
trusts no record of the earlier copy.`,
		Example: `  viablk copy image.raw via+roce://storage/disk0
  viablk copy nbd://old/disk0 via+roce://new/disk0 --resume
  viablk copy via+roce://storage/disk0 backup.raw --checksum`,
	}
	options := addTransferOptions(cmd)
	var config transfer.Config
	resume := cmd.Flags().Bool("resume", false, "compare first and write only what differs: go on after an interrupted copy")
	checksum := cmd.Flags().Bool("checksum", false, "print the SHA-256 of what was copied; uses one connection")
	cmd.Flags().BoolVar(&config.Allocate, "allocate", false, "write zeroes too, and have the destination keep no holes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := config
		if *resume {
			c.Mode = transfer.Resume
		}
		if *checksum {
			c.Digest = sha256.New()
		}
		r, err := a.runTransfer(cmd.Context(), options, c, args[0], args[1])
		if err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		r.SHA256 = hexOf(c.Digest)
		return a.printTransfer(r, [][]string{
			{"copied", roundSize(r.Copied).String()},
			{"zeroed", roundSize(r.Zeroed).String()},
			{"unchanged", roundSize(r.Same).String()},
		})
	}
	return cmd
}

// hexOf returns the sum of a digest, "" of none.
func hexOf(h hash.Hash) string {
	if h == nil {
		return ""
	}
	return hex.EncodeToString(h.Sum(nil))
}
