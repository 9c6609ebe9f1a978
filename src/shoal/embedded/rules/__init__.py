"""What each kind adds to an object that is written, and what it refuses: defaults, canonical forms, validation.

Only what users of GPUs meet is here. Fields without a rule are taken as they are; which fields there are at all is in
`shoal.embedded.fields`, and asked where bodies are read.
"""
