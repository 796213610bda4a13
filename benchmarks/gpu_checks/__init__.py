"""The checks of `make gpu-check`: everything that needs a GPU, and runs small on a CPU."""
