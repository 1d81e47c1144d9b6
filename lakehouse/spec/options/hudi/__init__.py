"""The options of Hudi jobs: which of them a write honours, and how their values become a `WriteJob`."""
