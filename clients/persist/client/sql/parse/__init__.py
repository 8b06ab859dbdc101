"""Texts into statements, and statements into texts."""
