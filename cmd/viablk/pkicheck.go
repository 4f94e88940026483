package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/pki"
)

func (a *app) pkiCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check FOLDER [HOST]",
		Short: "Check the certificates in a folder, and that a server takes them",
		Long: `Check what a server or a client needs of FOLDER: certificates, their names, use, time
and chain, the mode and owner of their keys, and the revocation list. With HOST, or
HOST:PORT, or the URI of an NBD server, connect to it under TLS as a client with these
certificates; with the URI of a VIA target, do the handshake of a sealed session.

The exit code is 0 if all is good, 2 if something ends within --days, 75 if HOST cannot
be reached, 77 if it refuses the certificate or is not who it should be, and 78 if
something in the folder is bad.`,
		Example: `  viablk pki check /etc/viablk/pki/target
  viablk pki check alice storage.example
  viablk pki check alice via+roce://storage.example/`,
	}
	var query queryOptions
	cmd.Flags().DurationVar(&query.timeout, "timeout", 10*time.Second, "give up after `TIME`")
	days := cmd.Flags().Int("days", soonDays, "`NUMBER` of days within which nothing is to end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *days < 0 {
			return usage("--days is at least 0")
		}
		var u config.URI
		if len(args) == 2 {
			var err error
			if u, err = checkedURI(args[0], args[1]); err != nil {
				return usage("%w", err)
			}
		}
		r := pkiReport{Schema: "viablk.pki-check/v1", Folder: args[0], Findings: pki.Check(args[0], time.Duration(*days)*day)}
		code := r.exitCode()
		if code != exitConfiguration && len(args) == 2 {
			finding, failure := query.handshake(cmd.Context(), u)
			r.Findings = append(r.Findings, finding)
			if failure != exitOK {
				code = failure
			}
		}
		return a.printPKICheck(r, code)
	}
	return cmd
}

// checkedURI returns the URI of a host, or what is one already, with the folder
// of the client's certificates.
func checkedURI(folder, host string) (config.URI, error) {
	if !strings.Contains(host, "://") {
		if strings.Count(host, ":") > 1 && !strings.HasPrefix(host, "[") {
			host = "[" + host + "]"
		}
		host = "nbds://" + host + "/"
	}
	u, err := config.ParseURI(host)
	switch {
	case err != nil:
		return u, err
	case !u.TLS && !u.Sealable():
		return u, fmt.Errorf("%s has no TLS: name a host, an nbds:// URI, or that of a VIA target of another host", u)
	case u.Unverified:
		return u, fmt.Errorf("%s would be taken for any server: leave out tls-verify-peer", u)
	}
	if u.Certificates == "" {
		u.Certificates = folder
	}
	return u, u.CheckRemote()
}

// pkiReport is what "viablk pki check" prints.
type pkiReport struct {
	Schema   string        `json:"schema"` // viablk.pki-check/v1
	Folder   string        `json:"folder"`
	Findings []pki.Finding `json:"findings"`
}

// exitCode returns the exit code of what was found in the folder.
func (r pkiReport) exitCode() int {
	code := exitOK
	for _, f := range r.Findings {
		switch f.State {
		case pki.Bad:
			return exitConfiguration
		case pki.Soon:
			code = exitFalse
		}
	}
	return code
}

// printPKICheck prints the report; its exit code is part of it.
func (a *app) printPKICheck(r pkiReport, code int) error {
	var err error
	if a.output == "json" {
		err = a.printJSON(r)
	} else {
		rows := [][]string{{"WHAT", "STATE", "DETAIL"}}
		for _, f := range r.Findings {
			rows = append(rows, []string{f.What, string(f.State), strings.Join(strings.Fields(f.Text), " ")})
		}
		err = a.printTable(rows)
	}
	if err == nil && code != exitOK {
		return &exit{code: code}
	}
	return err
}

// handshake connects to the server of a URI with certificates, and asks for its
// exports: a server that refuses a client says so after the handshake. The exit
// code says why it failed.
func (q *queryOptions) handshake(ctx context.Context, u config.URI) (pki.Finding, int) {
	_, place := u.Network()
	finding := pki.Finding{What: place, State: pki.Bad}
	if q.timeout <= 0 {
		finding.Text = "--timeout is more than 0s"
		return finding, exitUsage
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	if u.VIA() {
		d, err := discoverVIA(ctx, u)
		if err != nil {
			finding.Text = err.Error()
			return finding, exitCode(unreachable(err))
		}
		s := d.security
		finding.State, finding.Text = pki.Good, fmt.Sprintf("%s until %s, %s, %s, exports: %d", s.Peer[0],
			s.Expires.Format(time.DateOnly), s.Cipher, s.Agreement, len(d.infos))
		return finding, exitOK
	}
	p := new(peer)
	exports, err := p.list(ctx, u)
	if err != nil {
		finding.Text = err.Error()
		return finding, p.exitCode(err)
	}
	cert := p.state.PeerCertificates[0]
	finding.State, finding.Text = pki.Good, fmt.Sprintf("%s until %s, %s, %s, exports: %d", cert.Subject.CommonName,
		cert.NotAfter.Format(time.DateOnly), tls.VersionName(p.state.Version), p.state.CurveID, len(exports))
	return finding, exitOK
}

// peer is what a server is under TLS.
type peer struct {
	state   tls.ConnectionState
	refused error // why we refuse its certificate
}

// list lists the exports of the server.
func (p *peer) list(ctx context.Context, u config.URI) ([]nbd.ExportInfo, error) {
	conn, client, err := dialNBD(ctx, u)
	if err != nil {
		return nil, err
	}
	verify := client.TLS.VerifyConnection
	client.TLS.VerifyConnection = func(s tls.ConnectionState) error {
		p.state, p.refused = s, verify(s)
		return p.refused
	}
	return client.List(ctx, conn)
}

// exitCode returns the exit code of a failure. A server that refuses our
// certificate may just close the connection, once it has shown its own.
func (p *peer) exitCode(err error) int {
	var certificate *tls.CertificateVerificationError
	var alert *net.OpError
	var withoutTLS *nbd.RefusedError
	switch {
	case errors.As(err, &certificate), p.refused != nil, p.state.PeerCertificates != nil,
		errors.As(err, &alert) && alert.Op == "remote error", errors.As(err, &withoutTLS):
		return exitPermission
	}
	return exitCode(unreachable(err))
}
