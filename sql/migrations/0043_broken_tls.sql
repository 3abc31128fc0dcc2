-- A host whose TLS failed under another delivery.tls.minimum may work under this one.

ALTER TABLE broken_tls ADD COLUMN minimum text COLLATE "C" NOT NULL DEFAULT '';
COMMENT ON COLUMN broken_tls.minimum IS
    'The lowest version of TLS with which it failed (delivery.tls.minimum); the row counts with no other.';
COMMENT ON TABLE broken_tls IS
    'Hosts whose TLS handshake failed twice: mail that may leave in plain text does so for a while.';
COMMENT ON COLUMN broken_tls.reason IS 'The last failure.';
