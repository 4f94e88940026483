// Package config turns a configuration file, the environment and command-line
// flags into one checked, immutable [Config].
//
// Precedence is flag over environment over file over default. [Default] is the
// single source of keys and default values: a key is the path of a field
// through the mapstructure tags, such as target.inline_max, and its environment
// variable is that path in upper case behind VIABLK_, such as
// VIABLK_TARGET_INLINE_MAX. Lists are replaced as a whole, never merged.
//
// A key that no field has is an error, so that a misspelt key is not silently
// without effect. Every complaint names the key and where its value came from.
//
// The package is the only one that knows viper. It opens no disk and no socket,
// and it does not check backend specifications: the backends do.
package config
