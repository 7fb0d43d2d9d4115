"""A recorded pass, run again: what it needs, what it gives, and what it would give if something were different."""
