package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/internal/pki"
)

// day is the unit of a certificate's life.
const day = 24 * time.Hour

// The days that things last for unless --days says otherwise.
const (
	certificateDays = 825
	listDays        = 365 // of a revocation list
	soonDays        = 30  // that check looks ahead
)

func (a *app) pkiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pki",
		Short: "Make, renew, revoke and check certificates for TLS",
		Long: `Make, renew, revoke and check certificates for TLS.

Folders are laid out as nbdkit, libnbd and QEMU have them: ca-cert.pem and, if
certificates were revoked, ca-crl.pem; server-cert.pem with server-key.pem, or
client-cert.pem with client-key.pem. Keep ca-key.pem where certificates are issued,
and nowhere else.`,
		Example: `  viablk pki init ca
  viablk pki issue ca server storage.example 192.0.2.7 --out server
  viablk pki issue ca client alice --out alice
  viablk pki check alice storage.example
  viablk pki revoke ca alice --out server
  viablk target --listen nbds://storage.example/ --tls require --tls-certificates server \
      --export disk0=file:/srv/disk0.img
  nbdinfo 'nbds://storage.example/disk0?tls-certificates=alice'`,
	}
	cmd.AddCommand(a.pkiInitCommand(), a.pkiIssueCommand(), a.pkiRenewCommand(), a.pkiRevokeCommand(),
		a.pkiShowCommand(), a.pkiCheckCommand())
	return cmd
}

func (a *app) pkiInitCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init FOLDER",
		Short: "Make a certificate authority (CA)",
	}
	name := cmd.Flags().String("name", "viablk", "`NAME` of the CA")
	days := cmd.Flags().Int("days", 3650, "`NUMBER` of days until its certificate expires")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if *days < 1 {
			return usage("--days is at least 1")
		}
		return a.printMade(args[0], pki.CA, pki.Init(args[0], *name, time.Duration(*days)*day))
	}
	return cmd
}

func (a *app) pkiIssueCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issue FOLDER server|client NAME…",
		Short: "Issue a certificate",
		Long: `Issue a certificate signed by the CA in FOLDER. A server has all of the names,
host names or IP addresses; a client has one, for the clients of an export.`,
	}
	out := cmd.Flags().String("out", "", "`FOLDER` for it, its key and ca-cert.pem; that of the CA if empty")
	days := cmd.Flags().Int("days", certificateDays, "`NUMBER` of days until it expires")
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
		return a.printMade(folder, role, pki.Issue(args[0], role, args[2:], folder, time.Duration(*days)*day))
	}
	return cmd
}

// issuedReport is what "viablk pki init" and "viablk pki issue" print.
type issuedReport struct {
	Schema  string    `json:"schema"` // viablk.issued/v1
	Files   []string  `json:"files"`
	Expires time.Time `json:"expires"`
}

// printMade prints the files that err, if it is nil, says were made in folder,
// and when the certificate expires.
func (a *app) printMade(folder string, role pki.Role, err error) error {
	if err != nil {
		return pkiError(err)
	}
	files, expires, err := pki.Made(folder, role)
	if err != nil {
		return err
	}
	if a.output == "json" {
		return a.printJSON(issuedReport{"viablk.issued/v1", files, expires})
	}
	if _, err := fmt.Fprintf(a.stdout, "%s\nexpires %s\n", strings.Join(files, "\n"), expires.Format(time.DateOnly)); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
