"""Commands about accounts, tokens and collectors."""
