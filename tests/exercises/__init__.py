"""Parts that registration alone adds, each from a separate folder."""
