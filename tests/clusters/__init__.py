"""Jobs on real Spark clusters of this machine."""
