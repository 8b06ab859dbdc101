"""``persist sql``: statements from the command line, files and pipes, and a shell for people."""
