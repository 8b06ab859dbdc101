"""Messages whose schemas are in a registry: five bytes before each payload name the one it was written with."""
