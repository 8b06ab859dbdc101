"""Queries in processes of their own: what a text does there ends with it."""
