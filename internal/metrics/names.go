package metrics

import "github.com/prometheus/client_golang/prometheus"

// family is a metric with its labels.
type family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// families are all of them.
var families []*family

func gauge(name, help string, labels ...string) *family {
	return define(prometheus.GaugeValue, name, help, labels)
}

func counter(name, help string, labels ...string) *family {
	return define(prometheus.CounterValue, name, help, labels)
}

// histogram defines one of durations, see type durations.
func histogram(name, help string, labels ...string) *family {
	return define(prometheus.UntypedValue, name, help, labels)
}

func define(kind prometheus.ValueType, name, help string, labels []string) *family {
	f := &family{prometheus.NewDesc("viablk_"+name, help, labels, nil), kind}
	families = append(families, f)
	return f
}

// The process.
var (
	up        = gauge("up", "Whether the process reports its state: 1.")
	buildInfo = gauge("build_info", "Version and revision of the program: 1.", "version", "revision")
	started   = gauge("start_time_seconds", "Unix time at which the process began to serve.")
	draining  = gauge("draining", "Whether requests finish and clients are refused, because the process ends or was drained.")
	panics    = counter("panics_total", "Panics that ended one connection or request.")
)

// Exports.
var (
	exportSize       = gauge("export_size_bytes", "Size of the disk.", "export")
	exportReadOnly   = gauge("export_read_only", "Whether clients may not write.", "export")
	exportInfo       = gauge("export_info", "Kind of backend and identity of the disk: 1.", "export", "backend", "uuid")
	diskState        = gauge("disk_state", "Whether the disk has the state: requests are answered, wait for a lost target, or fail.", "export", "state")
	throttled        = counter("throttled_requests_total", "Requests that waited for limits of the export.", "export")
	throttledSeconds = counter("throttled_seconds_total", "Time that requests waited for limits of the export.", "export")
	corruptBlocks    = counter("corrupt_blocks_total", "Reads of blocks that are not what was written, by their checksums.", "export")
)

// Scrubs of exports with checksums.
var (
	scrubRunning    = gauge("scrub_running", "Whether a scrub of the disk runs.", "export")
	scrubProgress   = gauge("scrub_progress_ratio", "Part of the disk that the running scrub has passed, 0 if none runs.", "export")
	scrubCorrupt    = gauge("scrub_corrupt_blocks", "Blocks that the last scrub of the whole disk found not to be what was written.", "export")
	scrubUnreadable = gauge("scrub_unreadable_blocks", "Blocks that the last scrub of the whole disk could not read.", "export")
	scrubEnd        = gauge("scrub_last_end_timestamp_seconds", "Unix time at which the last scrub of the whole disk ended, 0 if there was none.", "export")
)

// Requests by face: nbd, device or via+PROVIDER.
var (
	requests    = counter("requests_total", "Requests answered.", "face", "export", "op")
	failures    = counter("request_errors_total", "Requests answered with an error.", "face", "export")
	transferred = counter("transferred_bytes_total", "Payload of requests.", "face", "export", "direction")
	connections = gauge("connections", "Connections that have the export open.", "face", "export")
	accepted    = counter("connections_accepted_total", "Connections accepted.", "face")
	refused     = counter("connections_refused_total", "Connections refused: over a limit, or while draining.", "face")
	admitted    = gauge("limited_connections", "Connections that count towards the limit.", "face")
	limit       = gauge("connections_limit", "Connections that there may be; of the last quarter none is for new clients.", "face")
	inFlight    = gauge("inflight_requests", "Requests in flight.", "face", "export")
	handshakes  = gauge("nbd_handshakes", "NBD clients that have not chosen an export.")
	displaced   = counter("nbd_handshakes_dropped_total", "NBD handshakes closed for newer ones.")
	requestTime = histogram("request_duration_seconds", "Time from the arrival of a request to its answer.", "face", "export", "op")
	backendTime = histogram("backend_duration_seconds", "Time of a request in the backend: a disk, or the target of a remote one.", "face", "export", "op")
	waits       = counter("waits_total", "Times that requests waited for a resource of their connection.", "face", "reason")
)

// VIA, and remote disks.
var (
	sessions         = gauge("via_sessions", "Sessions of initiators.", "provider")
	registrations    = counter("memory_registrations_total", "Registrations of memory with the provider.", "provider")
	quarantined      = counter("quarantined_connections_total", "Connections whose memory stays in use after a panic.", "provider")
	digestErrors     = counter("digest_errors_total", "Payload of initiators that its data digest refused.", "provider")
	targetConnected  = gauge("target_connected", "Whether the target of the disk answers.", "export", "provider")
	targetPath       = gauge("target_path_up", "Whether the path to a host of the target is up, of several.", "export", "provider", "host")
	targetLosses     = counter("target_losses_total", "Sessions with the target that were lost.", "export", "provider")
	targetDigest     = counter("target_digest_errors_total", "Requests whose payload a data digest refused, at either end.", "export", "provider")
	targetAway       = gauge("target_away_seconds", "Time since the target was lost, while requests wait for it.", "export", "provider")
	targetWaits      = counter("target_waits_total", "Times that requests to the target waited for a resource.", "export", "provider", "reason")
	targetQuarantine = gauge("target_quarantine_bytes", "Memory that a stopped target may still access.", "export", "provider")
	cacheHits        = counter("regcache_hits_total", "Uses of a registration that was there.")
	cacheMisses      = counter("regcache_misses_total", "Uses that registered memory.")
	cacheEvictions   = counter("regcache_evictions_total", "Registrations evicted for others.")
	cacheRefusals    = counter("regcache_refusals_total", "Registrations that the policy refused.")
	registeredBytes  = gauge("registered_bytes", "Memory in caches of registrations.")
)

// The kernel, the network, certificates and the configuration.
var (
	deviceConnections = gauge("device_connections", "Connections of the kernel to the process.", "device")
	deviceState       = gauge("device_state", "Whether the device that viablk attached has the state: a process serves it, its requests wait for one, or it is detached.", "device", "state")
	deviceReplaced    = counter("device_connections_replaced_total", "Connections that the kernel gave up and got again.", "device")

	packets       = counter("roce_packets_total", "RoCE packets.", "local", "direction")
	packetsResent = counter("roce_retransmitted_packets_total", "RoCE packets that were retransmitted, of those sent.", "local")
	packetBytes   = counter("roce_bytes_total", "Bytes of RoCE packets.", "local", "direction")
	packetDrops   = counter("roce_dropped_packets_total", "RoCE packets dropped.", "local", "reason")
	managerSent   = counter("roce_cm_messages_total", "Messages sent by the connection manager.", "local")
	managerResent = counter("roce_cm_retransmitted_total", "Messages retransmitted by the connection manager.", "local")

	certificateEnd    = gauge("tls_certificate_expiry_seconds", "Unix time at which the certificate or revocation list ends.", "role")
	certificateReads  = counter("certificate_reloads_total", "Times that certificates were read again.", "result")
	certificateReadAt = gauge("certificate_last_reload_success_timestamp_seconds", "Unix time at which certificates were last read again.")

	configurationReads  = counter("config_reloads_total", "Times that the exports of the configuration were read again.", "result")
	configurationReadAt = gauge("config_last_reload_success_timestamp_seconds", "Unix time at which the exports of the configuration were last read again.")
)
