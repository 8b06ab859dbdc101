"""SQL on Spark: queries and refreshes that persist has planned, over rows that it holds at one time."""
