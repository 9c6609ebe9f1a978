//go:build tools

// Package tools names the programs this module builds.
package tools

import _ "go.etcd.io/etcd/server/v3"
