"""Where bytes live: one small protocol in bytes and relative paths, whose strong verb is create-if-absent."""
