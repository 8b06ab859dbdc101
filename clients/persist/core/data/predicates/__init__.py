"""What predicates are made of: conditions, their texts and values, functions of dates, Arrow expressions."""
