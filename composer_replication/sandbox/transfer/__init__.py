"""Transfer of trees, commands and results into containers and to other machines."""
