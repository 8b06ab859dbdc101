"""``persist hold``: what keeps the history of collections readable."""
