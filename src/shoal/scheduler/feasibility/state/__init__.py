"""Nodes, pods and volumes by row, kept by change."""
