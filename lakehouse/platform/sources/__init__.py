"""Sources of rows for ingestion."""
