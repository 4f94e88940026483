// Package oob connects queue pairs out of band: both ends exchange queue pair
// parameters over TCP instead of a connection manager, with the protocol of
// ibv_rc_pingpong. It handles numbers and addresses, but no queue pairs.
//
//	client                             server
//	Dial       ── line of the client ──▶ Accept
//	           ◀── line of the server ── Answer
//	Done       ── "done" ──▶             (Answer returns)
//
// The server's queue pair can receive before Answer, the client's before Done.
// A line has one of two forms; the server answers in the client's:
//
//	llll:qqqqqq:pppppp:gggggggggggggggggggggggggggggggg
//	llll:qqqqqq:pppppp:gggggggggggggggggggggggggggggggg:kkkkkkkk:aaaaaaaaaaaaaaaa
//
// The fields are LID (0 on Ethernet), queue pair, the first PSN that the line's
// sender sends (a REQ states the other), GID, and as extension R_Key and
// address. Numbers are hexadecimal, lower case, with leading zeros; lines and
// "done" end in a NUL.
package oob
