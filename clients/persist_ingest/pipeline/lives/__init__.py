"""Later lives of an upstream: how a source goes on with one, and what it keeps in mind of one that is lost."""
