"""When something happened upstream: source times, frontiers of them, and the timeline of a source."""
