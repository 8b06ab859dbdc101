"""Blob and Consensus: the two ports and their adapters."""
