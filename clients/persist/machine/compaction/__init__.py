"""Carrying out compactions: scheduling, merging, and offering the result."""
