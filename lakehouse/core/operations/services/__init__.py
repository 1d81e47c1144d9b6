"""The table services: compaction, log compaction, clustering, clean, archive, partition TTL, index, filter build."""
