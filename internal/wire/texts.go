package wire

import "bytes"

// texts decodes the strings at the end of a message. It keeps the first error;
// after it every string is empty.
type texts struct {
	rest []byte
	err  error
}

// next returns the next n bytes.
func (t *texts) next(n uint16) []byte {
	if t.err == nil && int(n) > len(t.rest) {
		t.err = errBodyShort
	}
	if t.err != nil {
		return nil
	}
	b := t.rest[:n]
	t.rest = t.rest[n:]
	return b
}

// name returns the next n bytes as a name.
func (t *texts) name(n uint16) string {
	b := t.next(n)
	if t.err == nil {
		t.err = checkText(b, MaxName)
		switch {
		case t.err == errTextLimit:
			t.err = errNameLimit
		case t.err != nil || bytes.IndexByte(b, 0) >= 0:
			t.err = errNameBytes
		}
	}
	return t.string(b)
}

// text returns the next n bytes as a text for people.
func (t *texts) text(n uint16, limit int) string {
	b := t.next(n)
	if t.err == nil {
		t.err = checkText(b, limit)
	}
	return t.string(b)
}

func (t *texts) string(b []byte) string {
	if t.err != nil {
		return ""
	}
	return string(b)
}

// end returns the first error, or one if something is left.
func (t *texts) end() error {
	if t.err == nil && len(t.rest) != 0 {
		return errBodyLength
	}
	return t.err
}
