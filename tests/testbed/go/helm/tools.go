//go:build tools

// Package tools names the programs this module builds.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
