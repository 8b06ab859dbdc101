"""What stands between a caller and a handler: bounds, admission, and what failures are shown as."""
