"""Benchmarks: one file each; every one prints a table and writes `build/bench/<name>.json`."""
