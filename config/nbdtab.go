package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// The options of a line in nbdtab(5) that make it ours. Names that begin with
// an underscore are for uses of this kind.
const (
	tabTransport    = "_viablk_transport"
	tabCertificates = "_viablk_certificates"
	tabTargetName   = "_viablk_target_name"
)

// Nbdtab returns what a file in the format of nbdtab(5) says of a device, nbdN
// without its folder, as settings of attach: keys to their values.
//
//	device  host     export  options
//	nbd0    storage  disk0   _viablk_transport=roce,connections=2,timeout=30
//	nbd1    /run/t   disk1   _viablk_transport=shm,bs=4096
//
// A host that is a path is the socket of via+shm. Of the options of others
// port, bs, connections and timeout, in seconds, mean what they mean there;
// persist, swap, unix and those that begin with an underscore are passed over.
// Errors begin with the path, and the line where there is one.
func Nbdtab(path, device string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("find the disk of %s: %w", device, err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != device {
			continue
		}
		settings, err := tabSettings(fields)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		settings["attach.device"] = "/dev/" + device
		return settings, nil
	}
	return nil, fmt.Errorf("%s: there is no line of %s", path, device)
}

// tabSettings returns the settings of the fields of a line.
func tabSettings(fields []string) (map[string]string, error) {
	if len(fields) != 4 {
		return nil, fmt.Errorf("%d fields are not device, host, export and options", len(fields))
	}
	host, export := fields[1], fields[2]
	settings := make(map[string]string)
	var transport, port string
	for _, option := range strings.Split(fields[3], ",") {
		name, value, _ := strings.Cut(option, "=")
		var err error
		switch name {
		case tabTransport:
			transport = value
		case "port":
			port = value
		case "bs":
			settings["attach.minimum_block"] = value
		case "connections":
			settings["attach.connections"] = value
		case "timeout":
			settings["attach.io_timeout"], err = tabSeconds(value)
		case tabCertificates:
			settings["attach.certificates"] = value
		case tabTargetName:
			settings["attach.target_name"] = value
		case "persist", "swap", "unix", "":
		default:
			if !strings.HasPrefix(name, "_") || strings.HasPrefix(name, "_viablk") {
				err = errors.New("it is unknown")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("option %q: %w", option, err)
		}
	}
	if transport == "" {
		return nil, fmt.Errorf("the line is one of nbd-client: it has no option %s=shm or the like", tabTransport)
	}
	u, err := tabURI(transport, host, port, export)
	if err != nil {
		return nil, err
	}
	settings["attach.uri"] = u.String()
	return settings, nil
}

// tabURI returns the URI of a disk.
func tabURI(transport, host, port, export string) (URI, error) {
	if export == "-" { // how nbdtab writes the default export
		export = ""
	}
	text := "via+" + transport + "://"
	if strings.HasPrefix(host, "/") {
		text += "/" + escape(export) + "?socket=" + url.QueryEscape(host)
	} else {
		text += host + strings.TrimSuffix(":"+port, ":") + "/" + escape(export)
	}
	return ParseURI(text)
}

// tabSeconds makes a duration of seconds.
func tabSeconds(s string) (string, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return "", errors.New("it is no number of seconds")
	}
	return (time.Duration(n) * time.Second).String(), nil
}
