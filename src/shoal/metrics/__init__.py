"""The collector: what every card and every container really uses (docs/metrics.md)."""
