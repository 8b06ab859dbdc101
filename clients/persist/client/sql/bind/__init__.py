"""What the names in a query mean, what it reads of them, and what rows it gives."""
