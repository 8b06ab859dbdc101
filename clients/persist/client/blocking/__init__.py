"""The same for callers without an event loop."""
