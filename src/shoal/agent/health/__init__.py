"""Whether the node's cards can be used: what the driver reports, what each card shows when asked, and recovery.

`state` has the rules and decides (pure), `watch` asks the driver, `node_health` joins them on a node and remembers
faults over a restart of the process.
"""
