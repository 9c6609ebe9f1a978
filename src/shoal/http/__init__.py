"""HTTP and TLS as every service serves them: within bounds, certificates renewed without a restart."""
