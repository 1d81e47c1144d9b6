"""The verbs, one file each: load, plan, run, commit."""
