"""The path of a new user: the wheel in fresh environments, by the page of the documentation."""
