"""Backends of the fleet commands: they read and change the fleet's state in a catalog database or over the REST API."""
