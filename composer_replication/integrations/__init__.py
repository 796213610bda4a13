"""The coding environment in the forms other frameworks expect, one thin adapter per framework.

Each module imports its framework and no other module imports it: `import composer_replication.integrations.trl` and so on.
What an agent may do is declared once, in `envs/tools.py`, and every face shows that declaration.
"""
