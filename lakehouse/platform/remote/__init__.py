"""Client of the REST API of the pages."""
