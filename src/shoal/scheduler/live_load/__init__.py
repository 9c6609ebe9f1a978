"""Live load: what nodes measure, where it comes from, and for how long it counts."""
