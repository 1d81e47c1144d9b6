"""One ingestion run: plan from the checkpoint, read, write, report."""
