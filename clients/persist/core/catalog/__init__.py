"""What a catalog is and how it changes: pure, without bytes, clock or network."""
