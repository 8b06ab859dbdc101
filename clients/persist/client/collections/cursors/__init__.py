"""Cursors: names that keep how far a subscriber has come, and what comes after it."""
