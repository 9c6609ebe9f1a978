"""`shoal inspect` and `kubectl inspect gpushare`: the command and its tables."""
