package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
}

// Effective is a checked configuration with the origin of each value.
type Effective struct {
	Config   Config
	Settings []Setting // every key, in the order of the fields of Config
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
	return locate(bad.Problems, func(key string) (Origin, string) {
		for _, s := range e.Settings {
			if s.Key == key {
				return s.Origin, s.Source
			}
		}
		return FromDefault, ""
	})
}

// Load reads the file at path, if path is not empty, and puts the environment
// and flags above it. The format follows from the extension: .yaml, .yml, .toml
// or .json. backends is for [Config.Validate]. The error is an *[Error] if the
// content is at fault, and wraps an [fs.PathError] if the file cannot be read.
func Load(path string, flags Flags, backends BackendCheck) (Effective, error) {
	v := viper.New()
	for _, s := range settings(Default()) {
		v.SetDefault(s.Key, s.Value)
	}
	if err := readFile(v, path); err != nil {
		return Effective{}, err
	}
	v.SetEnvPrefix(strings.TrimSuffix(environmentPrefix, "_"))
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	v.AutomaticEnv()
	for key, flag := range flags {
		v.Set(key, flag.Value)
	}
	origin := func(key string) (Origin, string) { return originOf(v, path, flags, key) }

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
	for i := range e.Settings {
		s := &e.Settings[i]
		s.Origin, s.Source = origin(s.Key)
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

// readFile reads the configuration file into v.
func readFile(v *viper.Viper, path string) error {
	if path == "" {
		return nil
	}
	kind := strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), ".")
	if !slices.Contains([]string{"yaml", "yml", "toml", "json"}, kind) {
		return fileError(path, "the name of a configuration file ends in .yaml, .yml, .toml or .json")
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	v.SetConfigType(kind)
	if err := v.ReadConfig(f); err != nil {
		var system *fs.PathError
		if errors.As(err, &system) {
			return fmt.Errorf("read configuration: %w", err)
		}
		return fileError(path, oneLine(err.Error()))
	}
	return checkSections(v, path)
}

// checkSections reports sections that are not mappings. Viper lets such a value
// hide the defaults of everything below it.
func checkSections(v *viper.Viper, path string) error {
	var bad complaints
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("mapstructure")
		if t.Field(i).Type.Kind() != reflect.Struct || !v.InConfig(name) {
			continue
		}
		if _, ok := v.Get(name).(map[string]any); !ok {
			bad = append(bad, Problem{
				Key: name, Origin: FromFile, Source: path,
				Message: "is a section: write its keys below it",
			})
		}
	}
	return bad.err()
}

// fileError is a complaint about a file as a whole.
func fileError(path, message string) error {
	return &Error{Problems: []Problem{{Origin: FromFile, Source: path, Message: message}}}
}

// oneLine joins the lines of a message of a parser.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// EnvironmentName returns the variable that sets a key.
func EnvironmentName(key string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// originOf returns where the value of a key came from.
func originOf(v *viper.Viper, path string, flags Flags, key string) (Origin, string) {
	if flag, ok := flags[key]; ok {
		return FromFlag, flag.Name
	}
	if name := EnvironmentName(key); os.Getenv(name) != "" {
		return FromEnvironment, name
	}
	if v.InConfig(key) {
		return FromFile, path
	}
	return FromDefault, ""
}

// locate adds the origin to each problem that has none.
func locate(problems []Problem, origin func(key string) (Origin, string)) error {
	for i := range problems {
		if p := &problems[i]; p.Origin == "" {
			p.Origin, p.Source = origin(topKey(p.Key))
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
