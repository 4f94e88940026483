package config

import (
	"reflect"
	"time"
)

// Schema describes the configuration file as a JSON Schema of 2020-12. Describe
// says what a key is for, and with export one of an export. Bounds are not in
// it: [Config.Validate] has them.
func Schema(describe func(key string, export bool) string) map[string]any {
	d := schemaDescriber{describe: describe, defaults: make(map[string]any)}
	for _, s := range Defaults() {
		d.defaults[s.Key] = s.Value
	}
	schema := d.object(reflect.TypeFor[Config](), "")
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["title"] = "configuration of viablk"
	return schema
}

// schemaDescriber describes types of the configuration, or of an export.
type schemaDescriber struct {
	describe func(key string, export bool) string
	defaults map[string]any // by key; empty for an export
	export   bool
}

// object describes a section, whose keys begin with a prefix.
func (d *schemaDescriber) object(t reflect.Type, prefix string) map[string]any {
	properties := make(map[string]any)
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("mapstructure")
		if field := t.Field(i).Type; field.Kind() == reflect.Struct {
			properties[name] = d.object(field, prefix+name+".")
		} else {
			properties[name] = d.value(field, prefix+name)
		}
	}
	return map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
}

// value describes the value of a key.
func (d *schemaDescriber) value(t reflect.Type, key string) map[string]any {
	v := d.kind(t)
	if allowed := words[key]; allowed != nil && !d.export {
		v["enum"] = allowed
	}
	if text := d.describe(key, d.export); text != "" {
		v["description"] = text
	}
	if value := d.defaults[key]; value != nil && !reflect.ValueOf(value).IsZero() {
		v["default"] = value
	}
	return v
}

// kind describes what values of a type are in a file.
func (d *schemaDescriber) kind(t reflect.Type) map[string]any {
	const number = `[0-9]+(\.[0-9]*)?|\.[0-9]+`
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "string", "pattern": `^[-+]?(0|((` + number + `)(ns|us|µs|μs|ms|s|m|h))+)$`}
	case t == reflect.TypeFor[Size]():
		return map[string]any{"type": []string{"string", "integer"}}
	case t == reflect.TypeFor[Export]():
		x := schemaDescriber{describe: d.describe, export: true}
		mapping := x.object(t, "")
		mapping["required"] = []string{"backend"}
		short := map[string]any{"type": "string", "pattern": "="}
		return map[string]any{"oneOf": []any{mapping, short}}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": []string{"array", "string"}, "items": d.kind(t.Elem())}
	case t.Kind() == reflect.Pointer:
		return d.kind(t.Elem())
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		return map[string]any{"type": "integer"}
	}
	return map[string]any{"type": "string"}
}
