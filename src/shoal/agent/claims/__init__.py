"""Shares of cards as claims: the node's DRA driver (dynamic resource allocation).

`devices` makes the node's devices of its cards, `slices` publishes them. `preparing` answers kubelet: it reads what was
allocated to a claim (`results`), checks it against all that the node has given, and writes a CDI file (`specs`) and a
record (`records`). `driver` joins them. Who gets which card is decided elsewhere.
"""
