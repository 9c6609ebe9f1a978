"""What each kind adds to an object that is written, and what it refuses: defaults, canonical forms, validation.

Only what users of GPUs meet is here. Unknown fields are kept, and fields without a rule are taken as they are.
"""
