"""Rows changed as tables are: delete, update, merge, overwrite and restore, each one append of diffs by executors."""
