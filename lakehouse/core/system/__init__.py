"""What an operation takes from the operating system, behind protocols: clock, timers, ids, processes.

`lakehouse.core.env.Env` holds one of each. Nothing else reads the time, starts a timer or draws an id, so that a
simulation can decide all of it.
"""
