"""Times that processes agree on: oracles, the registers below them, and clocks."""
