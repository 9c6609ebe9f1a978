"""The checks. Pure: facts in, findings out."""
