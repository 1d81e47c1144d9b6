"""The table spec and its sections except `ingest`."""
