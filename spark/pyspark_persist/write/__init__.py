"""Writing: parts by tasks, one commit by the driver."""
