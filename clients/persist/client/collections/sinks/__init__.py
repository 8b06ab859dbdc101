"""Sinks: where updates go, with the position up to which they are there."""
