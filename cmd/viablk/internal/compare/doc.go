// Package compare measures viablk beside other servers and beside what it is to
// reach: its tests drive fio and "viablk bench", and write a page with charts.
// It is below the command because it draws with the command's charts.
package compare
