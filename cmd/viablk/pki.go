package main

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/internal/pki"
)

// day is the unit of a certificate's life.
const day = 24 * time.Hour

func (a *app) pkiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Make certificates for NBD over TLS",
		Long: `Make certificates for NBD over TLS.

Folders are laid out as nbdkit, libnbd and QEMU have them: ca-cert.pem, and
server-cert.pem with server-key.pem, or client-cert.pem with client-key.pem.
Keep ca-key.pem where certificates are issued, and nowhere else.`,
		Example: `  viablk pki init ca
  viablk pki issue ca server storage.example 192.0.2.7 --out server
  viablk pki issue ca client alice --out alice
  viablk target --listen nbds://storage.example/ --tls require --tls-certificates server \
      --export disk0=file:/srv/disk0.img
  nbdinfo 'nbds://storage.example/disk0?tls-certificates=alice'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.pkiInitCommand(), a.pkiIssueCommand())
	return cmd
}

func (a *app) pkiInitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init FOLDER",
		Short: "Make an authority, which issues certificates",
		Args:  cobra.ExactArgs(1),
	}
	name := cmd.Flags().String("name", "viablk", "`NAME` of the authority")
	days := cmd.Flags().Int("days", 3650, "`NUMBER` of days until its certificate expires")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if *days < 1 {
			return usage("--days is at least 1")
		}
		return pkiError(pki.Init(args[0], *name, time.Duration(*days)*day))
	}
	return cmd
}

func (a *app) pkiIssueCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issue FOLDER server|client NAME…",
		Short: "Issue a certificate",
		Long: `Issue a certificate of the authority in FOLDER. A server is known by all of the
names, host names or IP addresses; a client by its name, for lists of clients
of an export.`,
		Args: cobra.MinimumNArgs(3),
	}
	out := cmd.Flags().String("out", "", "`FOLDER` for it, its key and ca-cert.pem; the authority's own if empty")
	days := cmd.Flags().Int("days", 825, "`NUMBER` of days until it expires")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		role := pki.Role(args[1])
		switch {
		case *days < 1:
			return usage("--days is at least 1")
		case role != pki.Server && role != pki.Client:
			return usage("a certificate is for a server or a client, not a %q", args[1])
		case role == pki.Client && len(args) > 3:
			return usage("a client has one name")
		}
		folder := *out
		if folder == "" {
			folder = args[0]
		}
		return pkiError(pki.Issue(args[0], role, args[2:], folder, time.Duration(*days)*day))
	}
	return cmd
}

// pkiError says what can be done about files that are there.
func pkiError(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: nothing is replaced; remove it, or choose another folder", err)
	}
	return err
}
