//go:build tools

// Package tools names the programs this module builds.
package tools

import _ "github.com/influxdata/influxdb/cmd/influxd"
