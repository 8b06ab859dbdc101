"""The durable catalog: all metadata of one environment, and how it is opened, read, changed and followed."""
