"""What free pieces of cards are worth to the demand, for the `fragmentation` policy.

- `demand`: the pods that are there, counted by class
- `prices`: the worth of a free share of a card, from the sizes in demand; `normal`: the normal distribution as tables
- `valuation`: the worth of every node; `pressures`: costs of what runs short in the whole cluster
"""
