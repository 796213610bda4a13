"""Tasks from a repository's history: what a commit changed in the code is undone, and its tests stay."""
