// Package oob connects queue pairs out of band: both ends tell each other, over
// TCP, what a connection manager would tell, in the way of ibv_rc_pingpong and
// its kin. It knows numbers and addresses, and nothing of queue pairs.
//
//	client                             server
//	Dial       ── line of the client ──▶ Accept
//	           ◀── line of the server ── Answer
//	Done       ── "done" ──▶             (Answer returns)
//
// The server's queue pair can receive before Answer, the client's before Done. A
// line is text of a fixed length; docs/roce.md has it under "Out of band". The
// server answers in the client's form, plain or extended.
package oob
