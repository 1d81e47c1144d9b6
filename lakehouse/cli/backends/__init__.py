"""Where commands about the fleet read and change its state: in the database of a catalog, or over the REST API."""
