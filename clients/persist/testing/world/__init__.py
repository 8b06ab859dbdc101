"""A persist location under simulation: actors, a cluster, a nemesis, and the final checks."""
