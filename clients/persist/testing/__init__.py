"""Faults, models and histories for tests; production never imports this."""
