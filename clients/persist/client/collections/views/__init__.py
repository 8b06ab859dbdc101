"""What is computed from other collections and kept in a shard of its own: materialized views and indexes."""
