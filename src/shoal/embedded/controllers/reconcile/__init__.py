"""Decisions of the controllers: one object and what it owns in, actions out. Pure, and told the time."""
