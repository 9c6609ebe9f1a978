"""Policies of the literature, to compare with: one a file, as their authors' simulator computes them.

Node figures are theirs too: CPU and GPU are measured against the largest node of their trace.
"""
