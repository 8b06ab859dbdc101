"""``persist view``: materialized views that an engine outside of the leader computes."""
