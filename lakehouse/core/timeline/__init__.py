"""The timeline on storage: instants, locks, heartbeats, claims, and the files that make a commit visible."""
