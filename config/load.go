package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

// environmentPrefix begins the name of every variable that is read.
const environmentPrefix = "VIABLK_"

// Flags are the values given on the command line, by key: what pflag calls
// changed, not defaults. A value is a string, or a []string for a list.
type Flags map[string]Flag

// Flag is one value given on the command line.
type Flag struct {
	Name  string // as the user wrote it, such as --depth
	Value any    // a string or a []string
}

// Setting is one effective value and where it came from.
type Setting struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Origin Origin `json:"origin"`
	Source string `json:"source,omitempty"` // the flag, variable or file; empty for a default

	// Elements are the files of the elements of a list, where several have a
	// part of it.
	Elements []string `json:"elements,omitempty"`
}

// Effective is a checked configuration with the origin of each value.
type Effective struct {
	Config   Config
	Settings []Setting // every key, in the order of the fields of Config
	Files    []string  // that were read, in the order in which they apply
}

// Origin returns where the value of a key comes from.
func (e *Effective) Origin(key string) Origin {
	for _, s := range e.Settings {
		if s.Key == key {
			return s.Origin
		}
	}
	return FromDefault
}

// Validate is that of the configuration, with origins.
func (e *Effective) Validate(backends BackendCheck) error {
	var bad *Error
	if !errors.As(e.Config.Validate(backends), &bad) {
		return nil
	}
	return locate(bad.Problems, func(path string) (Origin, string) {
		for _, s := range e.Settings {
			if s.Key != topKey(path) {
				continue
			}
			if i, ok := elementOf(path); ok && i < len(s.Elements) {
				return s.Origin, s.Elements[i]
			}
			return s.Origin, s.Source
		}
		return FromDefault, ""
	})
}

// Load reads the file at path, if path is not empty, and its fragments, and
// puts the environment and flags above them. The format follows from the
// extension: .yaml, .yml, .toml or .json. backends is for [Config.Validate].
// The error is an *[Error] if the content is at fault, and wraps an
// [fs.PathError] if a file cannot be read.
func Load(path string, flags Flags, backends BackendCheck) (Effective, error) {
	v := viper.New()
	for _, s := range settings(Default()) {
		v.SetDefault(s.Key, s.Value)
	}
	all, err := readFiles(path)
	if err != nil {
		return Effective{}, err
	}
	if err := v.MergeConfigMap(all.values()); err != nil {
		return Effective{}, fileError(path, err.Error())
	}
	v.SetEnvPrefix(strings.TrimSuffix(environmentPrefix, "_"))
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	v.AutomaticEnv()
	for key, flag := range flags {
		v.Set(key, flag.Value)
	}
	origin := func(key string) (Origin, string) { return originOf(all, flags, key) }

	var c Config
	bad := renamedVariables()
	if err := v.UnmarshalExact(&c, viper.DecodeHook(decodeHook)); err != nil {
		bad = decodeProblems(bad, "", err)
	}
	bad = append(bad, c.complainBeside(bad, backends)...)
	if len(bad) > 0 {
		return Effective{}, locate(bad, origin)
	}
	e := Effective{Config: c, Settings: settings(c)}
	for _, f := range all {
		e.Files = append(e.Files, f.path)
	}
	for i := range e.Settings {
		s := &e.Settings[i]
		if s.Origin, s.Source = origin(s.Key); s.Origin == FromFile {
			s.Elements = all.elements(s.Key)
		}
	}
	return e, nil
}

// complainBeside returns what is wrong with the values of the keys that could
// be read: all but those of unread.
func (c Config) complainBeside(unread complaints, backends BackendCheck) complaints {
	var bad *Error
	if !errors.As(c.Validate(backends), &bad) {
		return nil
	}
	return slices.DeleteFunc(bad.Problems, func(p Problem) bool {
		return slices.ContainsFunc(unread, func(u Problem) bool { return !u.unknown && topKey(u.Key) == topKey(p.Key) })
	})
}

// EnvironmentName returns the variable that sets a key.
func EnvironmentName(key string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// originOf returns where the value at a path came from.
func originOf(all files, flags Flags, path string) (Origin, string) {
	key := topKey(path)
	if flag, ok := flags[key]; ok {
		return FromFlag, flag.Name
	}
	if name := EnvironmentName(key); os.Getenv(name) != "" {
		return FromEnvironment, name
	}
	if source := all.source(path); source != "" {
		return FromFile, source
	}
	return FromDefault, ""
}

// locate adds the origin to each problem that has none, and to what a problem
// is about beside it.
func locate(problems []Problem, origin func(path string) (Origin, string)) error {
	for i := range problems {
		p := &problems[i]
		if p.Origin == "" {
			p.Origin, p.Source = origin(p.Key)
		}
		if p.beside == "" {
			continue
		}
		if _, source := origin(p.beside); source != p.Source {
			p.Message += " of " + source
		}
	}
	return &Error{Problems: problems}
}

// Defaults lists every key with its default, in the order of the fields of
// [Config].
func Defaults() []Setting {
	all := settings(Default())
	for i := range all {
		all[i].Origin = FromDefault
	}
	return all
}

// ExportDefaults lists every key of an [Export] with its value where nothing is
// said, in the order of the fields.
func ExportDefaults() []Setting { return settings(Export{}) }

// Settings lists every key with its value, in the order of the fields, without
// origins.
func (c Config) Settings() []Setting { return settings(c) }

// settings lists the leaves of a configuration, or of an export, in the order
// of its fields, without their origins.
func settings(c any) []Setting {
	var all []Setting
	var walk func(v reflect.Value, prefix string)
	walk = func(v reflect.Value, prefix string) {
		for i := range v.NumField() {
			key := prefix + v.Type().Field(i).Tag.Get("mapstructure")
			if field := v.Field(i); field.Kind() == reflect.Struct {
				walk(field, key+".")
			} else {
				all = append(all, Setting{Key: key, Value: plain(field)})
			}
		}
	}
	walk(reflect.ValueOf(c), "")
	return all
}

// plain returns a value as it is written in a file.
func plain(v reflect.Value) any {
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String()
	}
	return v.Interface()
}

// sectionKeys lists the keys directly below a section, for messages.
func sectionKeys(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		keys = append(keys, t.Field(i).Tag.Get("mapstructure"))
	}
	return keys
}
