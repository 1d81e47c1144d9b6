"""Indexes that place a record by the hash of its key: buckets and ranges of hash values."""
