"""What times mean and how long they stay readable."""
