"""Commands that ask a cluster and change nothing in it, and what they share."""
