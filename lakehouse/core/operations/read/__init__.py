"""Plan and run reads: snapshot, read-optimized, incremental, change data capture, event-time versions."""
