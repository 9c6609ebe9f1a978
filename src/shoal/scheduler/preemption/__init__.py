"""Pods that give way to more important ones."""
