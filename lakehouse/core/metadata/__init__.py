"""The metadata table: file listings, column statistics and record locations of a table, stored as a Hudi table (MDT-2)."""
