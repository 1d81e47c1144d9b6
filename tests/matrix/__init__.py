"""The short suites that run on the corners of the matrix of versions."""
