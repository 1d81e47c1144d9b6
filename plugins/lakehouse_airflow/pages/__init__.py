"""JavaScript modules and icons of the pages: package data, served by the REST API."""
