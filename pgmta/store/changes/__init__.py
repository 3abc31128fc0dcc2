"""Queries and changes of operators: lists, one message, changes of many rows."""
