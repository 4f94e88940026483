// Package page shows the page for people of a process that serves to a browser:
// Chromium without a screen loads it while requests run, and what it then has
// and draws is compared with what there should be.
//
// The test has the build tag page. It needs the browser, which make test-page
// installs.
package page
