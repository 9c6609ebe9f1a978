"""Who gets which card: the ledger of what is booked, and the policies that choose.

Pure and synchronous: no I/O, no clock, no threads. Randomness comes in as an argument. `ledger` keeps the books,
`columns` the same books as arrays, `policies` names the ways to choose, `engine` decides, `explain` tells why not.
"""
