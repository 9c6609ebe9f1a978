//go:build tools

// Package tools names the programs this module builds.
package tools

import _ "sigs.k8s.io/node-feature-discovery/cmd/nfd-master"
