"""The section `ingest` of a table spec, and the settings of each source."""
