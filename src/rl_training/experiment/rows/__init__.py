"""The rows of the registry, one module per family; registry.py joins them."""
