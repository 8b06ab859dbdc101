"""Carrying out compactions: whose turn it is, the merge, and what becomes of it."""
