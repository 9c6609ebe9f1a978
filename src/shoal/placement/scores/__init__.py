"""How good a node is for a pod: one idea a file, its formula in the docstring, its weight in `weights`."""
