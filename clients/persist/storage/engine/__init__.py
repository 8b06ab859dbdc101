"""What adapters of several ports run on: databases, pools, file systems, watchers."""
