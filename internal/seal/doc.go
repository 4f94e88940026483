// Package seal protects what the ends of a session exchange once they have
// authenticated each other: capsules, which are whole messages, and payload,
// which is the data of commands in memory that RDMA reaches. It performs no
// I/O, knows no clock and no message.
//
// A [Session] holds what a handshake exported. [Session.Conn] derives from it a
// [Sealer] and an [Opener] of one connection. All keys are of HKDF-SHA-256, and
// all numbers in what they are derived from are little-endian:
//
//	PRK    = Extract(salt: nonce I || nonce T of the handshake, EKM)
//	Kjoin  = Expand(PRK, "viablk1 join", 32)
//	S      = Expand(PRK, "viablk1 conn" || u16 conn || u32 epoch ||
//	         nonce I || nonce T of the connection, 32)
//	S(d,0) = Expand(S, "viablk1 from initiator" or "viablk1 from target", 32)
//	S(d,g) = Expand(S(d,g-1), "viablk1 next", 32)
//
// Each generation g of a direction d has the keys of capsules, 32 bytes, and
// their ivs, 12 bytes: Expand(S(d,g), "viablk1 capsule key") and "viablk1
// capsule iv". A command governs its payload in both directions, so those keys
// are of the initiator's generation: "viablk1 data key" and "viablk1 data iv"
// for payload from the initiator, "viablk1 read key" and "viablk1 read iv" for
// payload from the target. Both ends know them by the command's capsule alone,
// however far either direction has gone on until the payload is opened.
//
// Everything is sealed by AES-256-GCM with the nonce
//
//	iv xor (u32 record || u64 counter)
//
// where the counter is that of the capsule, or of the capsule of the command,
// and starts at 0 for each connection and direction. It never starts again,
// also not with a new generation. A capsule is record 0 under a key of its own;
// record k of payload is the bytes from k times [RecordSize].
//
// A rekey gives the session another PRK. Each connection derives its S from
// it with the nonces that it has, and each direction goes on with generation 0
// of that: a new era. The counter goes on.
//
// A capsule is a prefix of 8 bytes (0x90, the generation modulo 256, the era
// modulo 256, a zero byte, the low 32 bits of the counter), which is
// authenticated, the sealed message, and a tag of 16 bytes.
//
// A receiver never trusts the prefix: it knows the next counter, and accepts
// the present generation or the next, or the first of a later era. So a capsule
// that is lost, repeated, reordered, changed or made up is one failed tag,
// [ErrForged], after which the opener opens nothing more. The reliable VIs
// below lose and reorder nothing, so an honest connection never sees it.
//
// A Session is safe for concurrent use. A Sealer, an Opener and the [Payload]s
// of a connection are for one goroutine at a time.
package seal
