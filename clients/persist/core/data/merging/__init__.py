"""Merging sorted runs: which is opened next, how far a step reaches, and many tiny ones as one."""
