"""Users: their passwords, logins, rights and networks, for every way in."""
