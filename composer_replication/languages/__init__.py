"""What the framework knows about programming languages; each has a room."""
