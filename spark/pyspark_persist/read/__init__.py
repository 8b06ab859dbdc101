"""Reading: planned on the driver, held while it lasts, read by tasks."""
