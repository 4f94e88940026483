package config

import "regexp"

// secrets are the parts of the specification of a disk that are
// not shown: passwords of a URI, and of the command of a server.
var secrets = regexp.MustCompile(`(?i)(//[^/?#@:\s]*:)[^/?#@\s]+@|(\b(?:password|passwd|passphrase|secret|token|cookie|key|api-?key)=)[^&\s\]]+`)

// hidden stands for a secret.
const hidden = "***"

// Redacted returns the export as it may be shown: without secrets.
func (e Export) Redacted() Export {
	e.Backend = secrets.ReplaceAllStringFunc(e.Backend, func(part string) string {
		m := secrets.FindStringSubmatch(part)
		if m[1] != "" {
			return m[1] + hidden + "@"
		}
		return m[2] + hidden
	})
	return e
}
