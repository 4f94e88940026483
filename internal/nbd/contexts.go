package nbd

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/viablk/viablk/internal/block"
)

// metaContext answers LIST_META_CONTEXT and SET_META_CONTEXT. There is one
// context, base:allocation, on exports whose device tells what it consists of.
// SET clears the earlier selection for every request, even if it fails.
func (n *negotiation) metaContext(option uint32, data []byte) error {
	set := option == optSetMeta
	if set {
		n.contexts = false
	}
	name, queries, err := parseMeta(data)
	if err == nil {
		err = validName(name, n.limits.NameBytes)
	}
	if err == nil && set && n.replyMode == simple {
		err = fmt.Errorf("metadata contexts need structured replies")
	}
	if err != nil {
		return n.refuse(option, repErrInvalid, err.Error())
	}
	export, err := n.find(name)
	if err != nil {
		return n.refuse(option, refusal(err), err.Error())
	}
	b := n.reply[:0]
	if export.clientInfo(n.limits).Features&block.CanStatus != 0 && queries.want(set) {
		id := uint32(0) // has no meaning in a list
		if set {
			id = contextID
			n.selected, n.contexts = export.Name, true
		}
		b = appendReplyHeader(b, option, repMetaContext, 4+len(contextName))
		b = binary.BigEndian.AppendUint32(b, id)
		b = append(b, contextName...)
	}
	return n.write(appendReplyHeader(b, option, repAck, 0))
}

// metaQueries are the queries of a metadata context option: strings, each
// behind its length, which fit.
type metaQueries struct {
	count int
	data  []byte
}

// parseMeta decodes the data of a metadata context option: 32 bits of name
// length, the name, 32 bits of count, and for each query 32 bits of length and
// the query.
func parseMeta(data []byte) (name string, queries metaQueries, err error) {
	take := func() ([]byte, bool) {
		if len(data) < 4 {
			return nil, false
		}
		length := binary.BigEndian.Uint32(data)
		if data = data[4:]; uint64(length) > uint64(len(data)) {
			return nil, false
		}
		s := data[:length]
		data = data[length:]
		return s, true
	}
	s, ok := take()
	if !ok || len(data) < 4 {
		return "", queries, fmt.Errorf("the export name does not fit the option")
	}
	name = string(s)
	queries.count = int(binary.BigEndian.Uint32(data))
	data = data[4:]
	queries.data = data
	for i := range queries.count {
		s, ok := take()
		switch {
		case !ok:
			return "", queries, fmt.Errorf("query %d of %d does not fit the option", i+1, queries.count)
		case len(s) > maximumText:
			return "", queries, fmt.Errorf("query of %d bytes, more than %d", len(s), maximumText)
		}
	}
	if len(data) != 0 {
		return "", queries, fmt.Errorf("%d bytes behind the last of %d queries", len(data), queries.count)
	}
	return name, queries, nil
}

// want reports whether base:allocation is asked for. A list without queries
// asks for all contexts, and one of "base:" for all of the namespace; a
// selection is by full names.
func (q metaQueries) want(set bool) bool {
	if q.count == 0 {
		return !set
	}
	for data := q.data; len(data) > 0; {
		length := binary.BigEndian.Uint32(data)
		query := string(data[4 : 4+length])
		if query == contextName || !set && strings.HasPrefix(contextName, query) && strings.HasSuffix(query, ":") {
			return true
		}
		data = data[4+length:]
	}
	return false
}
