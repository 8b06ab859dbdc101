"""Servers that take over from one another: a standby that is promoted, a recovery to a point in time."""
