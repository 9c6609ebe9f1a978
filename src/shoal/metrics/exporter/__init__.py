"""What the collector knows, for Prometheus: dcgm-exporter's fields and labels, and Shoal's own series."""
