"""Goals of what runs inside Spark."""
