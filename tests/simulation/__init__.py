"""Many writers, services and readers on one table, simulated: one seed decides everything that may happen."""
