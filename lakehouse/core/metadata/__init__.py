"""The metadata table: file listings, column statistics and record locations, stored as a Hudi table (MDT-2)."""
