"""The actor mesh on Ray: actors in its workers, weights in its object store."""
