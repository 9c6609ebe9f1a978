"""Ways to change an object: merge patch, JSON patch, strategic merge patch and server-side apply.

Pure functions over plain dicts. They neither default nor validate the result, and know no store.
"""
