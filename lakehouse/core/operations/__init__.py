"""The operations on a table, one verb per module: load the state, plan, execute, commit, report.

`load` and `commit` contain the steps that all operations share; `create`, `read`, `write`, `undo`, `services` and
`validate` contain the operations.
"""
