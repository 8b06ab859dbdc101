"""What the leader of an environment decides about times: sinces, lags, ticks, quarantine, what is finalized. Pure."""
