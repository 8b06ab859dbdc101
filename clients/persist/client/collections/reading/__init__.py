"""Reading collections by name and time: one way to a time, and every form in which rows are taken."""
