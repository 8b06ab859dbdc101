"""The catalog as bytes: rows of its shard, and what rows of older versions were."""
