"""Look for the broken link when an agent does not learn: checks of an environment, and a ladder of tiny problems."""
