"""Kubernetes objects as slim frozen structs: only the fields Shoal reads; unknown ones are passed over."""
