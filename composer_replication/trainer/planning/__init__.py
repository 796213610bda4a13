"""What a run will need, said before anything is spent."""
