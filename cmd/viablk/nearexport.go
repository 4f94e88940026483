package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/internal/nbd"
)

// mostSuggestions is how many exports a suggestion names at most.
const mostSuggestions = 3

// nearExportTimeout bounds the question which exports a server has.
const nearExportTimeout = 5 * time.Second

// withNearExports adds to the failure to open the export that u names what the
// name may have been meant for, if the server lists others and not that one.
func withNearExports(ctx context.Context, u config.URI, err error) error {
	if exitCode(err) != exitFailure {
		return err // the server was not reached, or refuses the client
	}
	ctx, cancel := context.WithTimeout(ctx, nearExportTimeout)
	defer cancel()
	found, listErr := listExports(ctx, u)
	if listErr != nil {
		return err
	}
	return fmt.Errorf("%w%s", err, nearExports(u.Export, found.infos))
}

// nearExports words a suggestion for the name of an export that a server does
// not list, or nothing for one that it does.
func nearExports(name string, listed []nbd.ExportInfo) string {
	var near []string
	for _, x := range listed {
		switch {
		case x.Name == name:
			return ""
		case name != "" && (editDistance(name, x.Name) <= suggestDistance || strings.HasPrefix(x.Name, name)):
			near = append(near, fmt.Sprintf("%q", x.Name))
		}
	}
	if len(near) > 0 {
		return didYouMean(near[:min(len(near), mostSuggestions)])
	}
	return "; viablk list shows what the server has"
}
