// Package packages holds the tests of the packages that contrib/package/build
// makes: they are built twice, looked at by the linters of their formats, and
// installed, upgraded, exchanged and removed in roots of Debian 12. Their
// manual is read by man and mandoc, their completions are used in bash, zsh and
// fish.
//
// The tests have the build tag packages. They need root, apt and the tools that
// make test-packages installs; what is missing is a failure. The host gets
// nothing but files in a temporary folder.
package packages
