"""What a source says of itself: how each table stands, what went wrong, and the figures of it."""
