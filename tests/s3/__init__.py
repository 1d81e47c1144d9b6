"""What runs against a local S3 server."""
