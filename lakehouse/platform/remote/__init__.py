"""Client for the REST API of the pages."""
