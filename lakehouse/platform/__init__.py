"""Code that runs around tables: catalog, metastore, publication, sources, ingestion, jobs, alarms, service runs.

The packages, from the top: `doctor`, `services`, `alarms`, `jobs`, `ingest`, `sources`, `publish`, `export`,
`metastore`, `catalog`.
"""
