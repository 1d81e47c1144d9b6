"""What should happen: the only place that decides. Takes state, policy and time; returns data. Pure."""
