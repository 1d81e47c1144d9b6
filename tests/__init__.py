"""Proofs, one folder per kind; `tests/support` holds what they share."""
