"""Custom resource definitions: their kinds in the catalogue, and what their schemas say of objects.

`schema` checks, `shaping` prunes and fills in, `columns` shows. CEL rules (`x-kubernetes-validations`) are not run, and
only the stored version of a definition is served.
"""
