"""Replay a trace of pods under one or more placement policies and compare them.

`trace` reads the files, `static` and `churn` are the two protocols, `runs` spreads the work over processes, `report`
tells what came out. Nothing here prints: the faces do.
"""
