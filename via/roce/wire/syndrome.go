package wire

import (
	"strconv"
	"time"
)

// Syndrome is the first byte of an AETH: the kind of answer in bits 6 and 5,
// its value in the low five. Bit 7 is reserved.
type Syndrome uint8

// SyndromeKind is the kind of an answer.
type SyndromeKind uint8

// The kinds, as in bits 7 to 5 of a syndrome.
const (
	KindACK      SyndromeKind = 0 // the value is a credit code
	KindRNR      SyndromeKind = 1 // no receive is posted; the value is a timer
	KindReserved SyndromeKind = 2 // also every other reserved syndrome
	KindNAK      SyndromeKind = 3 // refused; the value says why
)

const (
	syndromeValue = 0x1f
	syndromeRNR   = 0x20
	syndromeNAK   = 0x60
)

// The complete syndromes.
const (
	ACK                  Syndrome = 0x1f // without flow control by credits
	NAKSequence          Syndrome = 0x60 // a PSN is missing
	NAKInvalidRequest    Syndrome = 0x61 // the request breaks a rule
	NAKRemoteAccess      Syndrome = 0x62 // key, range or right is wrong
	NAKRemoteOperational Syndrome = 0x63 // the responder failed
	NAKInvalidRD         Syndrome = 0x64 // reliable datagram only
)

var nakNames = [...]string{
	"PSN sequence error", "invalid request", "remote access error",
	"remote operational error", "invalid RD request",
}

// Kind returns the kind of answer, or KindReserved.
func (s Syndrome) Kind() SyndromeKind {
	kind := SyndromeKind(s >> 5)
	if kind > KindNAK || kind == KindNAK && s > NAKInvalidRD {
		return KindReserved
	}
	return kind
}

// String returns the kind and the meaning of the value.
func (s Syndrome) String() string {
	switch s.Kind() {
	case KindACK:
		if s == ACK {
			return "ACK"
		}
		return "ACK, " + strconv.Itoa(s.Credits()) + " credits"
	case KindRNR:
		return "RNR NAK, " + s.Delay().String()
	case KindNAK:
		return "NAK, " + nakNames[s&syndromeValue]
	}
	return "syndrome-0x" + strconv.FormatUint(uint64(s), 16)
}

// fits reports whether the syndrome is valid in a response of an operation: any
// valid one in an acknowledgement, only an ACK with data.
func (s Syndrome) fits(op Operation) bool {
	kind := s.Kind()
	return kind == KindACK || op == OpAcknowledge && kind != KindReserved
}

// series are the credits that each credit code stands for, and the RNR timers
// in units of 10 µs, but for timer 0.
var series = [32]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

const (
	maxCreditCode = 30
	maxRNRTimer   = 31
	rnrUnit       = 10 * time.Microsecond
	longestRNR    = 65536 * rnrUnit // timer 0
)

// ACKCredits returns an ACK that grants n receives, or the next lower number
// that has a code.
func ACKCredits(n int) Syndrome {
	code := maxCreditCode
	for code > 0 && int(series[code]) > n {
		code--
	}
	return Syndrome(code)
}

// Credits returns the receives that an ACK grants, or -1 without limit. Only an
// ACK has credits.
func (s Syndrome) Credits() int {
	if s > maxCreditCode {
		return -1
	}
	return int(series[s])
}

// RNR returns an RNR NAK with a delay of at least d, or the longest one.
func RNR(d time.Duration) Syndrome { return syndromeRNR | Syndrome(RNRTimer(d)) }

// RNRTimer returns the code of the shortest delay not below d, or of the
// longest. The CM and the NAK use the same codes.
func RNRTimer(d time.Duration) uint8 {
	for code := uint8(1); code <= maxRNRTimer; code++ {
		if RNRDelay(code) >= d {
			return code
		}
	}
	return 0
}

// RNRDelay returns the delay of a timer code. Only the low 5 bits count. Code 0
// is the longest delay, 655.36 ms.
func RNRDelay(code uint8) time.Duration {
	if code &= syndromeValue; code != 0 {
		return time.Duration(series[code]) * rnrUnit
	}
	return longestRNR
}

// Delay returns the delay of an RNR NAK.
func (s Syndrome) Delay() time.Duration { return RNRDelay(uint8(s)) }
