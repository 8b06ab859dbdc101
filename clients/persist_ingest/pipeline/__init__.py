"""One source at work: created, read, given times, written, committed upstream, asked how it fares."""
