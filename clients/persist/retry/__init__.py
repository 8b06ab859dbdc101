"""Deadlines, pauses, and the one loop that repeats a call; what is repeated is a table."""
