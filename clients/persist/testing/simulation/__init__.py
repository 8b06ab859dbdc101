"""Simulated processes: a loop in virtual time, and stores, connections and servers on it."""
