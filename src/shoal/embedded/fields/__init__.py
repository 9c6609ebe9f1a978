"""The fields of the built-in kinds: their names, types and protobuf numbers, and what follows from knowing them.

What values are good is for `shoal.embedded.rules`; how fields are merged is in `shoal.embedded.patch.schema`.
"""
