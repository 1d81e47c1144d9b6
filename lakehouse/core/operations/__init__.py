"""The operations on a table, one verb per module: load the state, plan, execute, commit, report.

`load` and `commit` hold the steps that all operations share; `create`, `read`, `write`, `undo`, `services` and
`validate` hold the operations.
"""
