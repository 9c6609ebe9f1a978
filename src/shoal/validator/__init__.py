"""The validator of a node: checks driver, runtime and plugin, and writes NVIDIA's files of readiness."""
