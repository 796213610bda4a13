"""The recipe in replicas that share an object store: each rolls out and trains alone, and DiLoCo's outer loop joins them."""
