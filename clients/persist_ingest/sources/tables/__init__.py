"""What sources have in common whose exports are tables of a database."""
