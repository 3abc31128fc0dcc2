"""The only Python that runs SQL; each file of sql/queries has a module of its name here."""
