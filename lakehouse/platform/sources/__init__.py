"""Sources of ingestion: the protocol, the registry, and the files source."""
