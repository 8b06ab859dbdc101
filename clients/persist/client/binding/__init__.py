"""Bindings of sources: which source frontier is complete at which time, minted once."""
