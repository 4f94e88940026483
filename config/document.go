package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

// DecodeExport reads an export as a JSON document with the keys of the
// configuration, and with its rules. The error is an *[Error].
func DecodeExport(document []byte) (Export, error) {
	keys, err := decodeObject(document)
	if err != nil {
		return Export{}, err
	}
	return exportOf(keys)
}

// Merge returns the export as a JSON merge patch (RFC 7396) changes it: keys
// that the patch does not have stay, null means the default. The error is an
// *[Error].
func (e Export) Merge(patch []byte) (Export, error) {
	changes, err := decodeObject(patch)
	if err != nil {
		return Export{}, err
	}
	return e.merged(changes)
}

// merged is Merge of a patch that was read.
func (e Export) merged(changes map[string]any) (Export, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return Export{}, documentError(err.Error())
	}
	keys, err := decodeObject(text)
	if err != nil {
		return Export{}, err
	}
	return exportOf(merge(keys, changes))
}

// Change is what a patch makes of an export and its disk.
type Change struct {
	Export        // as Merge returns it
	Size     Size // of the disk; 0: as it is
	Writable bool // the patch says so, if the export was writable or not
}

// Change returns the export as a patch of Merge changes it. The patch may have
// the key size, which is no setting of an export and concerns the disk. The
// error is an *[Error] with what is wrong with either.
func (e Export) Change(patch []byte) (c Change, err error) {
	changes, err := decodeObject(patch)
	if err != nil {
		return Change{}, err
	}
	var bad complaints
	if value, given := changes[sizeKey]; given {
		delete(changes, sizeKey)
		c.Size = decodeDiskSize(&bad, value)
	}
	_, decides := changes["read_only"]
	if c.Export, err = e.merged(changes); err != nil {
		var more *Error
		if !errors.As(err, &more) {
			return Change{}, err
		}
		bad = append(bad, more.Problems...)
	}
	if err := bad.err(); err != nil {
		return Change{}, err
	}
	c.Writable = decides && !c.ReadOnly
	return c, nil
}

// sizeKey is the key of a disk's size in a patch.
const sizeKey = "size"

// SizeError is a complaint about the size of a patch.
func SizeError(message string) error {
	return &Error{Problems: []Problem{{Key: sizeKey, Origin: FromAdmin, Message: message}}}
}

// decodeDiskSize reads the size of a disk. One that disks cannot have is a
// complaint.
func decodeDiskSize(bad *complaints, value any) (size Size) {
	const sector = 512 // what the size of every disk is a multiple of
	err := error(nil)
	if value == nil {
		err = errors.New("a disk has no default size: leave it out")
	} else if value, err = decodeHook(reflect.TypeOf(value), reflect.TypeFor[Size](), value); err == nil {
		switch n := value.(type) {
		case Size:
			size = n
		case int64:
			size = Size(n)
		}
		if size <= 0 || size%sector != 0 {
			err = fmt.Errorf("%v is not a positive multiple of %d bytes", size, sector)
		}
	}
	if err != nil {
		*bad = append(*bad, SizeError(err.Error()).(*Error).Problems...)
	}
	return size
}

// DecodeLogLevel reads a JSON document with the level of a log, {"level":
// "debug"}, by the rules of the key log.level. The error is an *[Error].
func DecodeLogLevel(document []byte) (level string, err error) {
	keys, err := decodeObject(document)
	if err != nil {
		return "", err
	}
	var bad complaints
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key != "level" {
			bad.addUnknown(key, "unknown key; known here is level")
		}
	}
	level, isText := keys["level"].(string)
	if value, given := keys["level"]; given && !isText {
		bad.add("log.level", "%v is not text: quote it", value)
	} else {
		bad.oneOf("log.level", level)
	}
	for i := range bad {
		bad[i].Origin = FromAdmin
	}
	return level, bad.err()
}

// merge applies a merge patch to an object, which it changes.
func merge(object, patch map[string]any) map[string]any {
	for key, value := range patch {
		change, isObject := value.(map[string]any)
		switch {
		case value == nil:
			delete(object, key)
		case isObject:
			inner, ok := object[key].(map[string]any)
			if !ok {
				inner = make(map[string]any)
			}
			object[key] = merge(inner, change)
		default:
			object[key] = value
		}
	}
	return object
}

// decodeObject reads a document that is one JSON object.
func decodeObject(document []byte) (keys map[string]any, err error) {
	d := json.NewDecoder(bytes.NewReader(document))
	if err := d.Decode(&keys); err != nil {
		return nil, documentError("is not a JSON object: " + err.Error())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, documentError("has more behind the JSON object")
	}
	if keys == nil {
		return nil, documentError("is null, not a JSON object")
	}
	return keys, nil
}

// documentError is a complaint about a document as a whole.
func documentError(message string) error {
	return &Error{Problems: []Problem{{Origin: FromAdmin, Message: "the document " + message}}}
}

// documentKey is where the decoder finds an export of a document.
const documentKey = "target.exports[0]"

// exportOf decodes and checks an export, as that of a configuration file.
func exportOf(keys map[string]any) (Export, error) {
	v := viper.New()
	v.Set("target.exports", []any{keys})
	var c Config
	err := v.UnmarshalExact(&c, viper.DecodeHook(decodeHook))
	var bad complaints
	if err != nil {
		bad = decodeProblems(nil, "", err)
	} else if err := c.Target.Exports[0].validate(); err != nil {
		bad.add("", "%v", err)
	}
	for i := range bad {
		key, _ := strings.CutPrefix(bad[i].Key, documentKey)
		bad[i].Key, bad[i].Origin = strings.TrimPrefix(key, "."), FromAdmin
	}
	if err := bad.err(); err != nil {
		return Export{}, err
	}
	return c.Target.Exports[0], nil
}
