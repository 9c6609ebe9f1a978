"""Whether the node's cards can be used: what the driver reports, what a look at each card shows, and when one is back.

`state` has the rules and decides (pure), `watch` asks the driver, `node_health` joins them on a node and remembers
faults over a restart of the process.
"""
