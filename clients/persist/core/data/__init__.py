"""Rows as Arrow columns: schema, codec, order, updates, merge, statistics."""
