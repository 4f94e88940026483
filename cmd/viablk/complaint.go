package main

import (
	"slices"
	"strings"

	"github.com/viablk/viablk/config"
)

// uriArgument is the source of a URI that is an argument.
const uriArgument = "the URI argument"

// complaints returns a line for each problem of a configuration. A person who
// gave a flag reads of flags: the keys of the configuration are replaced by the
// flags of the command that set them.
func (a *app) complaints(e *config.Error) []string {
	flags := flagsOfKeys()
	var lines []string
	for _, p := range e.Problems {
		line := p.String()
		switch {
		case strings.HasPrefix(p.Source, "--"):
			line = p.Source + ": " + withFlags(p.Message, flags)
		case p.Source == uriArgument: // which the message names
			line = withFlags(p.Message, flags)
		}
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

// flagsOfKeys returns the flag that sets each key.
func flagsOfKeys() map[string]string {
	flags := make(map[string]string)
	for _, group := range [][]option{commonOptions, exportOptions, targetOptions, attachOptions, remoteOptions, deviceOptions} {
		for _, o := range group {
			flags[o.key] = "--" + o.flag
		}
	}
	return flags
}

// withFlags replaces the keys in a message by their flags.
func withFlags(message string, flags map[string]string) string {
	words := strings.Split(message, " ")
	for i, word := range words {
		bare := strings.TrimRight(word, ",:;.")
		key, _, _ := strings.Cut(bare, "[")
		if flag, ok := flags[key]; ok && strings.Contains(key, ".") {
			words[i] = flag + word[len(bare):]
		}
	}
	return strings.Join(words, " ")
}

// misspeltVariables returns a warning for each variable of an environment that
// would set a key if it had another name. Other variables that begin alike are
// none of ours.
func misspeltVariables(environment []string) (warnings []string) {
	known := []string{"VIABLK_CONFIG"}
	for _, s := range config.Defaults() {
		known = append(known, config.EnvironmentName(s.Key))
	}
	for _, variable := range environment {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "VIABLK_") || value == "" || slices.Contains(known, name) {
			continue
		}
		var near []string
		for _, k := range known {
			if editDistance(name, k) <= suggestDistance || strings.HasSuffix(k, strings.TrimPrefix(name, "VIABLK")) {
				near = append(near, k)
			}
		}
		if len(near) > 0 {
			warnings = append(warnings, name+": unknown variable"+didYouMean(near))
		}
	}
	return warnings
}
