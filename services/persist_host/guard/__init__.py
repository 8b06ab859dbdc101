"""The guard between callers and handlers: bounds, admission, and how failures are shown."""
