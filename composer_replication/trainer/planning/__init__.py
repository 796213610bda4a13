"""Plans of what a run needs, made before anything is spent."""
