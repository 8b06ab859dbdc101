"""What users hold: clients and handles."""
