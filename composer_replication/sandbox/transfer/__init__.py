"""How trees, commands and results travel into containers and to other machines."""
