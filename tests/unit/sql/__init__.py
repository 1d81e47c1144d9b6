"""SQL statements on tables of a catalog."""
