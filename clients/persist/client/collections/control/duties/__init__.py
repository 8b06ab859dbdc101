"""What a controller does again and again, one duty a module."""
