"""Protocols for the services of the operating system that operations use: clock, timers, ids, processes.

`lakehouse.core.env.Env` holds one of each. Nothing else reads the time, starts a timer or draws an id, so that a
simulation can decide all of it.
"""
