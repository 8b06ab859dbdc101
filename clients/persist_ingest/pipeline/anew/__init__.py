"""Exports that are read anew piece by piece, that join a source and leave it, while its others go on."""
