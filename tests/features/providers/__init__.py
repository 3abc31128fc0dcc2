"""Mail and SMS by HTTP interfaces of providers."""
