"""The resources of the API, each a module with `operations(api)`."""
