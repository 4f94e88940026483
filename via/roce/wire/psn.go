package wire

// mask24 bounds PSNs, MSNs and queue pair numbers.
const mask24 = 1<<24 - 1

// PSN is a packet sequence number: 24 bits, modulo 2^24. Each direction counts
// its own. A number is later if it is less than half the space ahead.
type PSN uint32

// Add returns the number n packets later, or earlier if n is negative.
func (p PSN) Add(n int) PSN { return PSN(uint32(p)+uint32(n)) & mask24 }

// Sub returns how far p is ahead of q, -2^23 to 2^23-1; negative if it is
// behind.
func (p PSN) Sub(q PSN) int { return distance24(uint32(p), uint32(q)) }

// Before reports whether p is behind q.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

// In reports whether p is one of the n numbers from first on. n is at most
// 2^24.
func (p PSN) In(first PSN, n int) bool { return int(uint32(p-first)&mask24) < n }

// MSN is a message sequence number: 24 bits, modulo 2^24. It counts the
// messages that a responder has completed, from 0.
type MSN uint32

// Add returns the number n messages later.
func (m MSN) Add(n int) MSN { return MSN(uint32(m)+uint32(n)) & mask24 }

// Sub returns how far m is ahead of q, -2^23 to 2^23-1.
func (m MSN) Sub(q MSN) int { return distance24(uint32(m), uint32(q)) }

// distance24 is a-b, sign extended from 24 bits.
func distance24(a, b uint32) int { return int(int32((a-b)<<8) >> 8) }
