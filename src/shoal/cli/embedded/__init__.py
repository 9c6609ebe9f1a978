"""Commands that run the embedded cluster."""
