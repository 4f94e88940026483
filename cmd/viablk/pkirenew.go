package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/internal/pki"
)

func (a *app) pkiRenewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "renew FOLDER FOLDER",
		Short: "Issue the certificates in a folder anew",
		Long: `Have the CA in the first FOLDER issue the certificates in the second anew, with the
same names and use. They keep their keys, which need not be there, unless --new-key is
given. Processes read them at SIGHUP.

The certificates that they replace stay valid until they expire: when a key was lost,
revoke them first, and issue others.`,
		Example: `  viablk pki renew ca server && systemctl kill -s HUP viablk-target
  viablk pki renew ca alice --new-key`,
	}
	newKey := cmd.Flags().Bool("new-key", false, "make new keys, too")
	days := cmd.Flags().Int("days", certificateDays, "`NUMBER` of days until they expire")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if *days < 1 {
			return usage("--days is at least 1")
		}
		roles, err := pki.Renew(args[0], args[1], *newKey, time.Duration(*days)*day)
		for _, role := range roles {
			if err := a.printMade(args[1], role, nil); err != nil {
				return err
			}
		}
		if err != nil {
			return pkiError(err)
		}
		return nil
	}
	return cmd
}

func (a *app) pkiRevokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "revoke FOLDER [NAME|SERIAL]",
		Short: "Revoke certificates",
		Long: `Add to the revocation list, ca-crl.pem, of the CA in FOLDER the certificates that it
issued under NAME, or the one with the serial number SERIAL. Without either, make the
list anew.

The list counts where it is: copy it to the folders of targets and clients, or name one
with --out, and send their processes SIGHUP. It is valid for --days: after that they
refuse all peers, so make it anew in time. "viablk pki check" says when it is due.`,
		Example: `  viablk pki revoke ca alice --out server && systemctl kill -s HUP viablk-target
  viablk pki revoke ca --out server`,
	}
	out := cmd.Flags().String("out", "", "copy the list to `FOLDER`, too")
	days := cmd.Flags().Int("days", listDays, "`NUMBER` of days that the list is valid for")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if *days < 1 {
			return usage("--days is at least 1")
		}
		word := ""
		if len(args) == 2 {
			word = args[1]
		}
		if len(args) == 2 && word == "" {
			return usage("an empty name is no certificate's")
		}
		revoked, err := pki.Revoke(args[0], word, time.Duration(*days)*day)
		if err == nil && *out != "" {
			err = pki.GiveList(args[0], *out)
		}
		if err != nil {
			return pkiError(err)
		}
		return a.printRevoked(args[0], revoked)
	}
	return cmd
}

// revokedReport is what "viablk pki revoke" prints.
type revokedReport struct {
	Schema  string   `json:"schema"` // viablk.revoked/v1
	Revoked []string `json:"revoked"`
	CRL     pki.List `json:"crl"`
}

// printRevoked prints the serial numbers that were added to the list in folder,
// and the list.
func (a *app) printRevoked(folder string, added []string) error {
	f, err := pki.Inspect(folder)
	if err != nil {
		return err
	}
	r := revokedReport{"viablk.revoked/v1", added, *f.CRL}
	if a.output == "json" {
		return a.printJSON(r)
	}
	text := cmp.Or(strings.Join(added, "\n"), "nothing new") + "\n"
	_, err = fmt.Fprintf(a.stdout, "%s%d revoked, next update %s\n", text, len(r.CRL.Revoked), r.CRL.Until.Format(time.DateOnly))
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func (a *app) pkiShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show FOLDER",
		Short: "Show the certificates in a folder",
		Long: `Show the certificates in FOLDER, and in that of a CA those that it issued: names, use,
serial number, time, key, and whether they are revoked.`,
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := pki.Inspect(args[0])
			if err != nil {
				return pkiError(err)
			}
			if a.output == "json" {
				return a.printJSON(certificatesReport{"viablk.certificates/v1", args[0], f})
			}
			return a.printTable(certificateRows(f, time.Now()))
		},
	}
}

// certificatesReport is what "viablk pki show" prints.
type certificatesReport struct {
	Schema string `json:"schema"` // viablk.certificates/v1
	Folder string `json:"folder"`
	pki.Contents
}

// certificateRows returns the table: a row for each certificate, and one for
// the revocation list.
func certificateRows(f pki.Contents, now time.Time) [][]string {
	rows := [][]string{{"NAMES", "USE", "STATE", "FROM", "UNTIL", "KEY", "CA", "SERIAL", "FILE"}}
	for _, c := range f.Certificates {
		use := make([]string, 0, len(c.Use))
		for _, role := range c.Use {
			use = append(use, string(role))
		}
		state := "valid"
		switch {
		case c.Revoked:
			state = "revoked"
		case now.After(c.Until):
			state = "expired"
		case now.Before(c.From):
			state = "early"
		}
		rows = append(rows, []string{
			dash(strings.Join(c.Names, " ")), dash(strings.Join(use, " ")), state,
			c.From.Format(time.DateOnly), c.Until.Format(time.DateOnly), c.Key, dash(c.CA), c.Serial, c.File,
		})
	}
	if l := f.CRL; l != nil {
		state, until := "valid", "-"
		if !l.Until.IsZero() {
			until = l.Until.Format(time.DateOnly)
			if now.After(l.Until) {
				state = "expired"
			}
		}
		rows = append(rows, []string{
			fmt.Sprintf("%d revoked", len(l.Revoked)), "crl", state,
			l.From.Format(time.DateOnly), until, "-", dash(strings.Join(f.Certificates[0].Names, " ")), l.Number, l.File,
		})
	}
	return rows
}

// dash is what a cell without text has.
func dash(text string) string { return cmp.Or(text, "-") }
