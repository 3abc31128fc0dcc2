-- name: insert
-- Insert an account, whose trigger makes a token.
INSERT INTO lifecycle.accounts (email, login) VALUES (%(email)s, %(login)s)
