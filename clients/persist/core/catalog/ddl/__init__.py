"""Statements that define, and what they do to a catalog: names, privileges, dependencies, audit events. Pure."""
