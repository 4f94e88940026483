module github.com/viablk/viablk/contrib/checklocks

go 1.26

require (
	golang.org/x/tools v0.38.0
	gvisor.dev/gvisor v0.0.0-20250503011706-39ed1f5ac29c
)

require (
	golang.org/x/mod v0.29.0 // indirect
	golang.org/x/sync v0.17.0 // indirect
)
