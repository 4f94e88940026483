package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/viablk/viablk/target/backend"
)

// maximumPaths bounds the paths that completion offers.
const maximumPaths = 100

// completeExport completes the backend of NAME=BACKEND: its kind, the path of a
// file, and the options behind that.
func completeExport(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	name, spec, found := strings.Cut(begun, "=")
	if !found {
		return nil, directive // people choose names
	}
	head := name + "="
	for {
		wrapper, inner := cutWrapper(spec)
		if wrapper == "" {
			break
		}
		head, spec = head+wrapper, inner
	}
	var offered []string
	for _, rest := range completeBackend(spec) {
		offered = append(offered, head+rest)
	}
	return offered, directive
}

// cutWrapper divides the specification of a disk that another one wraps, or has
// limits in front. wrapper is empty if there is none, or it is not whole.
func cutWrapper(spec string) (wrapper, inner string) {
	kind, rest, _ := strings.Cut(spec, ":")
	switch kind {
	case "volatile":
		return spec[:len(spec)-len(rest)], rest
	case "limit", "delay", "fault":
		if _, inner, found := strings.Cut(rest, ":"); found {
			return spec[:len(spec)-len(inner)], inner
		}
	}
	return "", spec
}

// completeBackend completes a specification that no other one is around.
func completeBackend(spec string) (offered []string) {
	scheme, rest, found := strings.Cut(spec, ":")
	if !found {
		for _, s := range schemes {
			if strings.HasPrefix(s, "nbd") {
				offered = append(offered, s)
			}
		}
		offered = append(offered, "limit:")
		for _, k := range backend.Kinds() {
			if k.Scheme != "nbd" {
				offered = append(offered, k.Scheme+":")
			}
		}
		return slices.DeleteFunc(offered, func(s string) bool { return !strings.HasPrefix(s, spec) })
	}
	path, query, asked := strings.Cut(rest, "?")
	switch {
	case asked:
		done := query[:strings.LastIndexByte(query, '&')+1]
		for _, option := range optionsLeft(scheme, query) {
			offered = append(offered, scheme+":"+path+"?"+done+option)
		}
	case scheme == "file" || scheme == "mmap":
		for _, p := range paths(path) {
			offered = append(offered, scheme+":"+p)
		}
	}
	return offered
}

// optionsLeft returns the options of a kind of disk that a query does not have
// and that its last, unfinished one may become.
func optionsLeft(scheme, query string) (left []string) {
	given := strings.Split(query, "&")
	last := given[len(given)-1]
	for _, k := range backend.Kinds() {
		if k.Scheme != scheme {
			continue
		}
		for _, option := range k.Options {
			key, values, _ := strings.Cut(option, "=")
			if slices.ContainsFunc(given[:len(given)-1], func(g string) bool { return strings.HasPrefix(g, key+"=") }) {
				continue
			}
			for value := range strings.SplitSeq(values, "|") {
				if value == strings.ToUpper(value) && value != "1" && value != "0" {
					value = "" // for people to choose
				}
				if o := key + "=" + value; strings.HasPrefix(o, last) {
					left = append(left, o)
				}
			}
		}
	}
	return left
}

// paths returns the files and folders whose paths begin like begun.
func paths(begun string) (found []string) {
	folder, name := filepath.Split(begun)
	entries, _ := os.ReadDir(filepath.Clean(folder)) // those that there are
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), name) || name == "" && strings.HasPrefix(e.Name(), ".") || strings.ContainsAny(e.Name(), "%?") {
			continue
		}
		path := folder + e.Name()
		if e.IsDir() {
			path += "/"
		}
		if found = append(found, path); len(found) == maximumPaths {
			break
		}
	}
	return found
}
