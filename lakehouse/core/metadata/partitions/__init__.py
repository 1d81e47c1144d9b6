"""The kinds of index partitions, one module each, behind the protocol `IndexPartition` (MDT-4)."""
