"""Ratios measured side by side; printed, not asserted."""
