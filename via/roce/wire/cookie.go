package wire

import "bytes"

// CookieSize is the length of a cookie, bytes: by returning it in its next REQ,
// a requester proves that it receives at its address.
const CookieSize = len(cookieMagic) + CookieCode

// CookieCode is the length of a cookie's code, which only the listener can
// compute, bytes.
const CookieCode = 16

// cookieMagic begins a cookie.
const cookieMagic = "\xc0vb\xe5"

// PutCookie writes a cookie to the end of a field of private data.
func PutCookie(field, code []byte) {
	at := len(field) - CookieSize
	copy(field[at+copy(field[at:], cookieMagic):], code)
}

// Cookie returns the cookie that a field of private data ends with, or nil.
func Cookie(field []byte) []byte {
	if len(field) < CookieSize {
		return nil
	}
	b := field[len(field)-CookieSize:]
	if string(b[:len(cookieMagic)]) != cookieMagic {
		return nil
	}
	return b[len(cookieMagic):]
}

// Challenge returns the private data of a REQ, fill bytes of which data is the
// beginning, with the cookie that a REJ with this private data asks for. It
// returns nil if the REJ asks for none, or data leaves no room.
func Challenge(rej, data []byte, fill int) []byte {
	if len(rej) < CookieSize || string(rej[:len(cookieMagic)]) != cookieMagic || len(data) > fill {
		return nil
	}
	field := make([]byte, fill)
	copy(field, data)
	end := field[fill-CookieSize:]
	if Cookie(field) == nil && len(bytes.Trim(end, "\x00")) != 0 {
		return nil
	}
	copy(end, rej[:CookieSize])
	return field
}
