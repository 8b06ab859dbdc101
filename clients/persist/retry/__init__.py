"""Deadlines, pauses, and the one loop that repeats a call; what is repeated, and how, are tables."""
