"""What generated blocking classes stand on: holding an asyncio object, opening a client, streams and blocks."""
