"""Collections: what people name, read at a time, subscribe to and hold, and who controls their times."""
