"""Who gets which card: the ledger of what is booked, and the policies that choose.

Pure and synchronous: no I/O, no clock, no threads. Randomness comes in as an argument.

- `ledger`, `columns`: what is there and who holds it, once in full and once as arrays
- `classes`, `assignment`, `topology`: what a pod needs of a node, and which of its containers gets which card
- `trial`: a class of pods tried on some nodes; `filters`, `cards`, `scores`, `keti` and `baselines` read it
- `class_columns`, `single`: what is kept about a class on every node, and how changed nodes are tried again
- `worth`: what a free piece is worth to the demand that is there
- `policies`, `weights`: the ways to choose, by name
- `engine`: decides and books, and says where a pod fits and why not elsewhere; `without`: were some pods gone
"""
