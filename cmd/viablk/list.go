package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
	"github.com/viablk/viablk/internal/pki"
)

// export describes a remote export. The names in JSON are those of nbdinfo, and
// transport beside them.
type export struct {
	nbd.ExportInfo
	SizeText  string `json:"export-size-str"`
	URI       string `json:"uri"`
	Transport string `json:"transport"` // nbd, or the VIA provider
	tls       bool   // what is said of it was encrypted
	UUID      string `json:"uuid,omitempty"` // over VIA
}

// exportReport is what "viablk list" and "viablk info" print.
type exportReport struct {
	Schema   string   `json:"schema"`   // viablk.exports/v1
	Protocol string   `json:"protocol"` // newstyle-fixed or via
	TLS      bool     `json:"TLS"`
	Target   string   `json:"target,omitempty"` // over VIA, the identity of the target
	Exports  []export `json:"exports"`

	Served []servedDisk `json:"served,omitempty"` // of info: the process here that serves it
	Copy   *copyReport  `json:"copy,omitempty"`   // of info, over VIA

	Security *securityReport `json:"security,omitempty"` // over VIA: absent of one in clear

	Network []networkReport `json:"network,omitempty"` // over RoCE: what asking took
}

// described are exports, and what a network did while they were asked for.
type described struct {
	infos   []nbd.ExportInfo
	target  string            // identity of a VIA target
	uuids   map[string]string // over VIA, by export
	network []networkReport

	security *securityReport // of a sealed session
}

// newExportReport describes exports behind the endpoint of u.
func newExportReport(u config.URI, infos []nbd.ExportInfo) exportReport {
	r := exportReport{Schema: "viablk.exports/v1", Protocol: "newstyle-fixed", TLS: u.TLS, Exports: []export{}}
	transport := "nbd"
	if u.VIA() {
		r.Protocol, transport = "via", u.Provider
	}
	for _, i := range infos {
		r.Exports = append(r.Exports, export{
			ExportInfo: i, SizeText: config.Size(i.Size).String(),
			URI: withExport(u, i.Name), Transport: transport,
		})
	}
	return r
}

// queryOptions are the flags of commands that ask a server one thing.
type queryOptions struct {
	timeout            time.Duration
	certificates, name string
}

// addQueryOptions registers them.
func addQueryOptions(cmd *cobra.Command) *queryOptions {
	q := new(queryOptions)
	cmd.Flags().DurationVar(&q.timeout, "timeout", 10*time.Second, "give up after `TIME`")
	cmd.Flags().StringVar(&q.certificates, "certificates", "", "`FOLDER` of ca-cert.pem, client-cert.pem and client-key.pem, unless the URI has tls-certificates")
	cmd.Flags().StringVar(&q.name, "target-name", "", "`NAME` that the certificate of the server has; empty: the host of the URI")
	return q
}

// parse parses the URI argument.
func (q *queryOptions) parse(uri string) (config.URI, error) {
	u, err := config.ParseURI(uri)
	if err == nil {
		u = u.With(q.certificates, q.name)
		err = u.CheckRemote()
	}
	if err != nil {
		return u, usage("%v", err)
	}
	if q.timeout <= 0 {
		return u, usage("--timeout is more than 0s")
	}
	return u, nil
}

// query parses the URI argument and asks.
func (q *queryOptions) query(ctx context.Context, uri string, ask func(context.Context, config.URI) (described, error)) (exportReport, error) {
	u, err := q.parse(uri)
	if err != nil {
		return exportReport{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	found, err := ask(ctx, u)
	var certificates *pki.FileError
	switch {
	case errors.As(err, &certificates):
		return exportReport{}, err // it names the URI
	case err != nil:
		return exportReport{}, unreachable(about("", u, err))
	}
	report := newExportReport(u, found.infos)
	for i := range report.Exports {
		e := &report.Exports[i]
		e.UUID, e.tls = found.uuids[e.Name], u.TLS || found.security != nil
	}
	report.Network, report.Target, report.Security = found.network, found.target, found.security
	return report, nil
}

func (a *app) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list URI",
		Short: "List the exports of a server",
		Long:  "List the exports of a VIA target or of any NBD server. The export in URI does not matter.",
		Example: `  viablk list via+roce://storage/
  viablk list nbd://localhost -o json`,
	}
	options := addQueryOptions(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		report, err := options.query(cmd.Context(), args[0], listExports)
		if err != nil {
			return err
		}
		if a.output == "json" {
			return a.printJSON(report)
		}
		rows := [][]string{{"EXPORT", "SIZE", "ACCESS", "URI", "DESCRIPTION"}}
		for _, e := range report.Exports {
			size, access := e.SizeText, "rw"
			if e.ReadOnly {
				access = "ro"
			}
			if e.Error != "" {
				size, access = "?", "?"
			}
			rows = append(rows, []string{e.Name, size, access, e.URI, strings.TrimSpace(e.Description + " " + e.Error)})
		}
		return a.printTable(rows)
	}
	return cmd
}

// listExports asks the server behind u for all its exports.
func listExports(ctx context.Context, u config.URI) (described, error) {
	if u.VIA() {
		return discoverVIA(ctx, u)
	}
	c, client, err := dialNBD(ctx, u)
	if err != nil {
		return described{}, err
	}
	infos, err := client.List(ctx, c)
	return described{infos: infos}, err
}
