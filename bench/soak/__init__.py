"""The soak: real processes on real stores, disturbed at random, and every promise checked over the whole history."""
