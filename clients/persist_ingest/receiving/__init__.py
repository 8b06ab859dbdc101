"""Sources that are served: what is sent to them is appended by the servers that take it."""
