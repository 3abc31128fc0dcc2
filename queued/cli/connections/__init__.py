"""Commands about connections to next hops."""
