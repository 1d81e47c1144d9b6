"""The house rules, held by tests: floors, sizes, light imports, no leaks."""
