"""``persist sink``: deliver what sinks of an environment name."""
