"""Users, their failed logins, and the recipients of relay domains."""
