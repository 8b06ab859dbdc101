"""Adapters of the port Consensus."""
