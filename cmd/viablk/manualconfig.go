package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/viablk/viablk/config"
	"github.com/viablk/viablk/target/backend"
	"github.com/viablk/viablk/target/limit"
)

// configPage is the name of the page about configuration files.
const configPage = "viablk.yaml"

// configPreface is what the page says before the keys.
const configPreface = `A process of viablk takes its settings from flags, then from environment variables,
then from a configuration file, then from defaults. The file is named by --config or
by VIABLK_CONFIG; there is none that is read unasked. It is YAML, TOML or JSON, as
its name ends in .yaml, .yml, .toml or .json. An unknown key is an error.

A folder conf.d beside the file has its fragments: files whose names end in .yaml and do
not begin with a dot. They are read after the file, in the order of their names, each
time that the file is. A value prevails over that of an earlier file. Lists are joined:
each fragment may add exports and listeners. The name of an export that two files have
is an error. Folder and fragments belong to root, to the user of the process or to the
owner of the file, and like the file they may not be writable for every user. There are
at most 1000, and 8 MiB of text with the file.

A key with a dot is one in a section: target.listen is the key listen of the section
target. Its variable is VIABLK_TARGET_LISTEN; elements of a list are divided by
commas or spaces there, exports by semicolons or lines.

A SIZE is a number of bytes, or has a unit: 64KiB, 64k, 1GiB, 1G. A TIME has one:
500ms, 10s, 2m. A URI is nbd://HOST, nbds://HOST, nbd+unix:///?socket=PATH,
nbd+vsock:///, via+shm:///?socket=PATH or via+roce://HOST, with an export's name as
its path.

viablk-config-check(1) reports everything that is wrong with a file,
viablk-config-show(1) prints the value of each key and where it comes from.`

// exportPreface is what the page says before the keys of an export.
const exportPreface = `An element of target.exports is a mapping of these keys, or NAME=BACKEND in short, where
limits may stand before the disk:

  disk0=limit:iops=5000,session-bandwidth=100MiB:file:/srv/disk0.img`

// backendText is what the page says of backends.
const backendText = `A BACKEND is one of

  memory:SIZE           memory, which ends with the target
  file:PATH             a regular file or block device
  mmap:PATH             a file whose reads leave from the page cache
  cow:BASE,OVERLAY      a base and the writes over it
  crc:BACKEND,SUMS      a disk with checksums in the file SUMS
  null:SIZE             reads zeroes, forgets writes
  nbd://HOST/EXPORT     an export of an NBD server; nbds:, nbd+unix:, nbd+vsock:
  run:[COMMAND ...]     an NBD server that starts and ends with the disk
  rbd:POOL/IMAGE        an image of Ceph, or of a snapshot: rbd:POOL/IMAGE@SNAPSHOT
  delay:OP=TIME:BACKEND, fault:OP=FAULT:BACKEND, volatile:BACKEND
                        slower, with faults, and with a cache, for tests

Options follow a question mark, joined by &: file:/srv/a.img?create=10GiB&direct=1. In
a PATH a percent sign is written %25 and a question mark %3F. OPTIONSOFKINDS

create=SIZE makes a sparse file if there is none, and create=1 an overlay; readonly=1
refuses writes; direct=1 bypasses the page cache; lock=0 does not lock the file;
identity=0 keeps no identity, so that initiators do not return to the disk; io says who
waits for the disk; steal=1 takes an image from the client that has its lock.`

// optionsText says which options the kinds of disks have.
func optionsText() string {
	var kinds []string
	for _, k := range backend.Kinds() {
		if len(k.Options) > 0 {
			kinds = append(kinds, k.Scheme+": has "+strings.Join(k.Options, ", "))
		}
	}
	return strings.Join(kinds, "; ") + "."
}

// configExample is a configuration file of the page.
const configExample = `
target:
  certificates: /etc/viablk/pki/target
  listen:
    - via+shm:///?socket=/run/viablk-target/target.sock
    - via+roce://192.0.2.1
  exports:
    - scratch=memory:1GiB
    - name: disk0
      backend: file:/var/lib/viablk/disk0.img?direct=1
      description: the first disk
      session_limits: {iops: 5000, bandwidth: 100MiB}
nbd:
  connections: 1000
log:
  format: json
`

// unflaggedOptions are keys that no flag sets.
var unflaggedOptions = []option{
	{"", "attach.uri", "VIA `URI` of the remote disk, where it is no argument"},
	{"", "metrics.certificates", "`FOLDER` of ca-cert.pem, server-cert.pem and server-key.pem: metrics over TLS, for clients with a certificate; empty: without TLS"},
	{"", "metrics.exports", "`NAMES` of exports, a list of those with metrics each if there are more than 256"},
	{"", "metrics.ready_away", "`TIME` that the target of a disk is away before /readyz answers 503"},
}

// listUsages are keys that are lists in a file, and flags that may be repeated.
var listUsages = []option{
	{"", "target.listen", "`URIS`, a list of where to listen, NBD or VIA"},
	{"", "target.exports", "`EXPORTS`, a list of the disks to serve"},
	{"", "attach.paths", "`URIS`, a list of further paths to the same disk: hosts of its target, also over other providers"},
	{"", "attach.clients", "`NAMES`, a list of the only NBD clients that get the disk: names in certificates, and user:NAME and uid:N of this host"},
	{"", "attach.clients_read_only", "`NAMES`, a list of NBD clients that get the disk for reading, beside those of clients"},
}

// exportUsages are the keys of an export.
var exportUsages = map[string]string{
	"name":                     "what clients ask for, `TEXT` with upper and lower case apart; it may be empty",
	"backend":                  "the disk, `BACKEND`, see below",
	"description":              "a `LINE` for people",
	"default":                  "have the export answer to the empty name too",
	"read_only":                "refuse writes",
	"clients":                  "`NAMES`, a list of the only clients that get the export: names in certificates, and user:NAME and uid:N of this host; an empty list is of no client",
	"clients_read_only":        "`NAMES`, a list of clients that get the export for reading, beside those of clients",
	"minimum_block":            "have requests be multiples of `SIZE`; what the disk needs, if it is not said",
	"preferred_block":          "recommend `SIZE` for a request; the disk's, if it is not said",
	"maximum_payload":          "longest NBD READ or WRITE, `SIZE`; the disk's, if it is not said",
	"rotational":               "tell clients that the disk is rotational, or is not; default: what the disk says",
	"multi_conn":               "promise that a flush covers all connections, or does not; default: what the disk says",
	"limits.iops":              "`NUMBER` of requests per second of all clients together; flushes do not count",
	"limits.bandwidth":         "bytes per second of all clients together, `SIZE`, of reads and writes",
	"limits.burst":             "keep what was not used for `TIME`; " + limit.DefaultBurst.String() + ", if it is not said",
	"session_limits.iops":      "`NUMBER` of requests per second of each client, or initiator",
	"session_limits.bandwidth": "bytes per second of each client, `SIZE`",
	"session_limits.burst":     "keep what a client did not use for `TIME`; " + limit.DefaultBurst.String() + ", if it is not said",
}

// configManual returns the page about configuration files.
func configManual(root *cobra.Command, date string) []byte {
	r := new(roff)
	r.header(configPage, "5", date, "viablk "+version().Version)
	r.section("NAME")
	r.line(`%s \- %s`, plain(configPage), "configuration of viablk")
	r.section("DESCRIPTION")
	r.prose(configPreface)
	defaults := config.Defaults()
	for _, section := range []string{"", "target", "attach", "nbd", "metrics", "log"} {
		r.section(strings.ToUpper(strings.TrimSpace(section + " keys")))
		for _, s := range defaults {
			if name, _, nested := strings.Cut(s.Key, "."); nested && name == section || !nested && section == "" {
				r.key(s, usageOf(s.Key), flagsOf(root, s.Key))
			}
		}
	}
	r.section("KEYS OF AN EXPORT")
	r.prose(exportPreface)
	for _, s := range config.ExportDefaults() {
		r.key(s, exportUsages[s.Key], nil)
	}
	r.section("BACKENDS")
	r.prose(strings.Replace(backendText, "OPTIONSOFKINDS", optionsText(), 1))
	r.section("EXAMPLES")
	r.prose(indent(configExample))
	r.section("FILES")
	r.item(italic("/etc/viablk/target.yaml"), plain("What viablk-target.service serves."))
	r.item(italic("/etc/viablk/conf.d/*.yaml"), plain("Its fragments, for programs that manage disks one by one."))
	r.section("SEE ALSO")
	r.line("%s,\n%s,\n%s", reference("viablk", "1"), reference("viablk-config-check", "1"), reference("viablk-config-show", "1"))
	return r.text.Bytes()
}

// usageOf returns what is said of a key.
func usageOf(key string) string {
	for _, o := range slices.Concat(listUsages, commonOptions, exportOptions, targetOptions, remoteOptions, attachOptions, deviceOptions, unflaggedOptions) {
		if o.key == key {
			return o.usage
		}
	}
	return ""
}

// flagsOf returns references to the flags that set a key.
func flagsOf(root *cobra.Command, key string) []string {
	var flags []string
	for _, cmd := range documented(root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if slices.Contains(f.Annotations[keyAnnotation], key) {
				flags = append(flags, bold("--"+f.Name)+" of "+reference(pageName(cmd), "1"))
			}
		})
	}
	return flags
}

// key writes the item of a key.
func (r *roff) key(s config.Setting, use string, flags []string) {
	argument, text := pflag.UnquoteUsage(&pflag.Flag{Usage: use, Value: new(noValue)})
	tag := bold(s.Key)
	if argument != "" && argument != "value" {
		tag += ": " + italic(argument)
	}
	r.item(tag, plain(sentence(text)))
	switch value := fmt.Sprint(s.Value); value {
	case "", "[]", "false", "0", "0s", "<nil>":
	default:
		r.line("%s", plain("The default is "+value+"."))
	}
	if len(flags) > 0 {
		r.line("%s %s.", plain("Flag"), strings.Join(flags, ",\n"))
	}
}

// noValue is the value of a flag that there is not, for its usage.
type noValue struct{}

func (*noValue) String() string   { return "" }
func (*noValue) Set(string) error { return nil }
func (*noValue) Type() string     { return "value" }

// indent indents each line, which then stands as it is.
func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n  ")
}
