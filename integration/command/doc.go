// Package command holds the tests of viablk as other programs start it: the
// units of systemd, socket activation, standard input, and refusals.
package command
