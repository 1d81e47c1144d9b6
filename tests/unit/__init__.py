"""One module at a time, values in and values out; no JVM, no network."""
