"""Parts of commands that import click alone."""
