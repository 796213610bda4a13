"""The Python interface: what the `composer` commands do, as functions. The package root exports them."""
