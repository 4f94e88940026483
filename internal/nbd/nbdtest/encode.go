package nbdtest

import (
	"bytes"
	"encoding/binary"
	"slices"
)

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }
func be32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }
func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

// Option returns an option whose length is that of its data.
func Option(id uint32, data ...[]byte) []byte {
	all := bytes.Join(data, nil)
	return slices.Concat([]byte("IHAVEOPT"), be32(id), be32(uint32(len(all))), all)
}

// GoData returns the data of INFO and GO.
func GoData(name string, ids ...uint16) []byte {
	b := append(be32(uint32(len(name))), name...)
	b = append(b, be16(uint16(len(ids)))...)
	for _, id := range ids {
		b = append(b, be16(id)...)
	}
	return b
}

// MetaData returns the data of LIST_META_CONTEXT and SET_META_CONTEXT.
func MetaData(name string, queries ...string) []byte {
	b := append(be32(uint32(len(name))), name...)
	b = append(b, be32(uint32(len(queries)))...)
	for _, q := range queries {
		b = append(append(b, be32(uint32(len(q)))...), q...)
	}
	return b
}
