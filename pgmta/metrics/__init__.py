"""Figures that daemons keep in plain numbers, and their page for Prometheus."""
