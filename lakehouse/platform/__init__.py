"""What runs around tables: catalog, metastore, publication, sources, ingestion, service runs, jobs.

The packages, from the top: `jobs`, `services`, `ingest`, `sources`, `publish`, `metastore`, `catalog`.
"""
