"""The only Python that runs SQL; each module is the twin of sql/queries/<its name>.sql."""
