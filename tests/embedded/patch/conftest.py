from hypothesis import settings

# Machines are shared: slowness of one example is not a failure.
settings.register_profile("embedded-patch", deadline=None, database=None)
settings.load_profile("embedded-patch")
