"""Spark jobs that ship with persist."""
