"""Base files: write, read, copy row groups, bounds, bloom filters, and choose files by them."""
