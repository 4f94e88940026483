package config

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decodeHook converts what files, variables and flags hold into the types of
// the fields. Everything that the decoder would convert loosely (a fraction to
// an integer, a number to a duration in nanoseconds) is refused here.
func decodeHook(from, to reflect.Type, data any) (any, error) {
	if from == to {
		return data, nil
	}
	text, isText := data.(string)
	switch {
	case isText && reflect.PointerTo(to).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		value := reflect.New(to)
		err := value.Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(text))
		return value.Elem().Interface(), err
	case to == reflect.TypeFor[time.Duration]():
		return decodeDuration(text, isText, data)
	case isText && to.Kind() == reflect.Slice:
		return fields(text, separators(to)), nil
	case to.Kind() == reflect.Slice && from.Kind() != reflect.Slice:
		return nil, errors.New("is a list")
	case to.Kind() == reflect.Struct && from.Kind() != reflect.Map:
		return nil, errors.New("is a mapping")
	case to.Kind() == reflect.Bool:
		return decodeBool(data)
	case to.Kind() == reflect.Int || to.Kind() == reflect.Int64:
		return decodeInteger(text, isText, data)
	case to.Kind() == reflect.String && !isText:
		return nil, fmt.Errorf("%v is not text: quote it", data)
	}
	return data, nil
}

// separators divide the elements of a list in a text. A backend may have spaces
// and commas.
func separators(list reflect.Type) string {
	if list == reflect.TypeFor[[]Export]() {
		return "\n;"
	}
	return " \t\n,"
}

// fields splits a list, without empty elements and space around elements.
func fields(text, separators string) []string {
	list := []string{}
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}

func decodeDuration(text string, isText bool, data any) (any, error) {
	if !isText {
		return nil, fmt.Errorf("%v has no unit: write a duration such as 10s or 500ms", data)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration such as 10s or 500ms", text)
	}
	return d, nil
}

func decodeBool(data any) (any, error) {
	switch value := data.(type) {
	case bool:
		return value, nil
	case string:
		if b, err := strconv.ParseBool(value); err == nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("%v is not true or false", data)
}

func decodeInteger(text string, isText bool, data any) (any, error) {
	v := reflect.ValueOf(data)
	switch {
	case isText:
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return n, nil
		}
		return nil, fmt.Errorf("%q is not a number", text)
	case v.CanInt():
		return v.Int(), nil
	case v.CanUint() && v.Uint() <= math.MaxInt64:
		return int64(v.Uint()), nil
	case v.CanFloat() && math.Trunc(v.Float()) == v.Float() && math.Abs(v.Float()) < 1<<53:
		return int64(v.Float()), nil
	}
	return nil, fmt.Errorf("%v is not a whole number", data)
}

// renamed are the keys that have another name now.
var renamed = map[string]string{
	"nbd.spin":    "nbd.busy_poll",
	"target.spin": "target.busy_poll",
}

// renamedVariables complains about variables of keys that have another name:
// without a key they would have no effect.
func renamedVariables() (bad complaints) {
	for _, old := range slices.Sorted(maps.Keys(renamed)) {
		if name := EnvironmentName(old); os.Getenv(name) != "" {
			bad = append(bad, Problem{
				Key: old, Origin: FromEnvironment, Source: name,
				Message: "unknown key; did you mean " + EnvironmentName(renamed[old]) + "?", unknown: true,
			})
		}
	}
	return bad
}

// decodeProblems collects what the decoder complains about. The decoder wraps
// each complaint in an error that knows the path of the value.
func decodeProblems(bad complaints, key string, err error) complaints {
	if named, ok := err.(interface{ Name() string }); ok {
		key = named.Name()
	}
	switch wrapped := err.(type) {
	case interface{ Unwrap() []error }:
		for _, e := range wrapped.Unwrap() {
			bad = decodeProblems(bad, key, e)
		}
		return bad
	case interface{ Unwrap() error }:
		if inner := wrapped.Unwrap(); inner != nil {
			return decodeProblems(bad, key, inner)
		}
	}
	keys, unknown := strings.CutPrefix(err.Error(), "has invalid keys: ")
	if !unknown {
		bad.add(key, "%s", oneLine(err.Error()))
		return bad
	}
	prefix := key
	if prefix != "" {
		prefix += "."
	}
	for name := range strings.SplitSeq(keys, ", ") {
		if now, ok := renamed[prefix+name]; ok {
			bad.addUnknown(prefix+name, "unknown key; did you mean %s?", now)
			continue
		}
		bad.addUnknown(prefix+name, "unknown key; known here are %s", strings.Join(sectionKeys(sectionType(key)), ", "))
	}
	return bad
}

// sectionType returns the struct at the path of a section or list element.
func sectionType(path string) reflect.Type {
	t := reflect.TypeFor[Config]()
	for name := range strings.SplitSeq(path, ".") {
		name = topKey(name) // without the index of an element
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("mapstructure") == name {
				if t = f.Type; t.Kind() == reflect.Slice {
					t = t.Elem()
				}
				break
			}
		}
	}
	return t
}
