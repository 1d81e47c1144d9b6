"""The table format engine: reads, writes and services tables in the Apache Hudi format with PyArrow alone.

It needs neither Spark nor Java. The packages, from the top: `table` (public API), `operations` (one verb per module),
`timeline`, `files` and `engine` (effects), `env` (storage, clock, timers, ids and processes of one operation),
`planning` and `storage`, `state`, `index` and `rows`, `format` and `system` (clock, timers, ids and processes of a real
machine). Each imports only from packages below it. `state` holds the folded table state (configuration, file system
view, partition statistics) that planners take as input. `engine` holds the protocol by which operations run tasks, and
its implementation on local threads.
"""
