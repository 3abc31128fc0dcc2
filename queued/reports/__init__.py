"""The text of DSNs: what a report says, in which language, and how it is written as a message."""
