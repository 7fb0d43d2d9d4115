"""A recorded pass, run again: the data that it needs, its results, and its results if something were different."""
