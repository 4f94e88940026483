package config

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// files are a configuration file and its fragments, each of which prevails over
// those before it. Lists are joined.
type files []file

// lists are the keys with lists, each of a section, and what divides elements
// in a text.
var lists = listsOf(reflect.TypeFor[Config](), "")

func listsOf(t reflect.Type, prefix string) map[string]string {
	all := make(map[string]string)
	for i := range t.NumField() {
		field := t.Field(i)
		key := prefix + field.Tag.Get("mapstructure")
		switch field.Type.Kind() {
		case reflect.Struct:
			maps.Copy(all, listsOf(field.Type, key+"."))
		case reflect.Slice:
			all[key] = separators(field.Type)
		default:
		}
	}
	return all
}

// values returns what the files say together.
func (all files) values() map[string]any {
	values := make(map[string]any)
	for _, f := range all {
		values = merge(values, f.values.AllSettings())
	}
	for key := range lists {
		if all.elements(key) == nil {
			continue
		}
		var joined []any
		for _, f := range all {
			part, _ := f.list(key)
			joined = append(joined, part...)
		}
		section, name, _ := strings.Cut(key, ".")
		values = merge(values, map[string]any{section: map[string]any{name: joined}})
	}
	return values
}

// list returns the list that a file has for a key.
func (f file) list(key string) (list []any, ok bool) {
	switch value := f.values.Get(key).(type) {
	case nil:
		return nil, false
	case []any:
		return value, true
	case string:
		for _, s := range fields(value, lists[key]) {
			list = append(list, s)
		}
		return list, true
	default:
		return []any{value}, true // the decoder complains
	}
}

// elements returns the file of each element of a list that several files have
// a part of, else nil.
func (all files) elements(key string) (paths []string) {
	if lists[key] == "" {
		return nil
	}
	parts := 0
	for _, f := range all {
		list, ok := f.list(key)
		if ok {
			parts++
		}
		paths = append(paths, slices.Repeat([]string{f.path}, len(list))...)
	}
	if parts < 2 {
		return nil
	}
	return paths
}

// source returns the file that a value is of, or the files of a list. It is
// empty if none has the key.
func (all files) source(path string) string {
	key := topKey(path)
	if elements := all.elements(key); elements != nil {
		if i, ok := elementOf(path); ok && i < len(elements) {
			return elements[i]
		}
		return strings.Join(slices.Compact(elements), ", ")
	}
	for _, f := range slices.Backward(all) {
		if f.values.InConfig(key) {
			return f.path
		}
	}
	return ""
}

// elementOf returns the index in the path of an element of a list.
func elementOf(path string) (i int, ok bool) {
	_, rest, found := strings.Cut(path, "[")
	number, _, closed := strings.Cut(rest, "]")
	i, err := strconv.Atoi(number)
	return i, found && closed && err == nil && i >= 0
}
