"""Which card of a node: one rule a file. Whole cards are all alike to these rules; `topology` sets them in order."""
