"""Materialized views that another engine computes."""
