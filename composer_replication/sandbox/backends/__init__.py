"""The sandbox backends: how each starts, what it isolates and how it is supervised."""
