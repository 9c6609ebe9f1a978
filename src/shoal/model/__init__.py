"""The words of Shoal: cards, nodes, requests, allocations, quantities and the names other stacks gave them.

Pure data and pure functions: nothing here reads a file, a clock or a socket.
"""
