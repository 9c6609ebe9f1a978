"""MPS, NVIDIA's service that lets several programs compute on a card at once: its daemon and its commands.

`daemon` starts, asks and stops the control daemon; `v2` and `v3` build commands and read answers of its two protocols.
When to start one, what to limit and what to do when it dies is the agent's business. Nothing here has met a real daemon
yet: commands and answers follow NVIDIA's manual of release 615.
"""
