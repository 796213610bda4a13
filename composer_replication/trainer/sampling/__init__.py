"""Choose the tasks of a step: in turn, by a curriculum, and shared out among replicas."""
