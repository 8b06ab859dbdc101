"""What a request of definitions says beside its statements, and what is kept of its outcome."""
