"""Whether the node's cards can be used: what the driver reports, what a look at each card shows, and when one is back.

`rules` says what counts, `state` decides (pure), `memory` is how faults outlive the process, `watch` asks the driver.
"""
