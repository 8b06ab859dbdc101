"""Adapters of the port Blob."""
