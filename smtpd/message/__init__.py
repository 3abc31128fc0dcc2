"""The content of one message on its way in: its end, its checks, its header."""
