"""One suite per protocol, run on every implementation of it."""
