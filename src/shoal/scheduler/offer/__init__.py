"""Offers: what this cluster could do for pods of other clusters, asked by a cluster manager."""
