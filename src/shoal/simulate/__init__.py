"""Replay a trace of pods under one or more placement policies and compare them.

`trace` reads the files, `static` and `churn` are the two protocols, `runs` spreads the work over processes, `report`
and `plots` show the results. Nothing here prints: the faces do.
"""
