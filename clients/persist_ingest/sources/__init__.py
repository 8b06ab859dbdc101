"""Readers of upstreams: what a pipeline asks of one, and those that come with persist."""
