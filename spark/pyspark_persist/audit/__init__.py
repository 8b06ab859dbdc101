"""Who changed a table, how and when: a row for each commit, in a shard of its own."""
