"""Every kind of box: how it starts, what it isolates and how it is supervised."""
