"""Write the metadata table: initialise partitions, commit changes, roll back, drop (MDT-8, MDT-9)."""
