"""Services of the metadata table: compaction, log compaction, clean and archive, inside commits (MDT-10)."""
