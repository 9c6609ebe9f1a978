"""Who gets which card: the ledger of what is booked, and the policies that choose.

Pure and synchronous: no I/O, no clock, no threads. Randomness comes in as an argument.

- `books`: what is there and who holds it, once as a ledger and once as arrays
- `classes`, `stacking`: what a pod needs of a node, and which of its containers gets which card
- `trial`: a class of pods tried on some nodes; `filters`, `cards`, `scores` read it
- `worth`: what a free piece is worth to the demand that is there
- `policy`, `policies`, `weights`, `baselines`: the ways to choose, by name
- `engine`: decides and books; `explain`: tells why not
"""
