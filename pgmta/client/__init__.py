"""Mail of programs, without SMTP: over connections of the client, or over the program's own."""
