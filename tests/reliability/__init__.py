"""How tables stand up to processes that die: kills at numbered steps, a soak of many processes, a report of both."""
