"""The tables that `kubectl inspect gpushare` prints."""
