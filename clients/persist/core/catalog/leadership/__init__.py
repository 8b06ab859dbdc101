"""Who may write a catalog: fences, following, migrations, and the rules of a commit."""
