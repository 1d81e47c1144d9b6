"""One process of a job: run it, classify its failure, write its report, return its exit code."""
