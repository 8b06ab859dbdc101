"""Which of our times upstream's were given: minted once, translated both ways, believed or not."""
