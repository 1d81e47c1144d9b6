"""Builds the archive of a Python environment that Spark unpacks on the nodes of a cluster."""
