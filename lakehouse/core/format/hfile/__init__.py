"""HFiles: sorted keys with values, which base files and log blocks of the metadata table contain (MDT-1)."""
