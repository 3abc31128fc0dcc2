"""From a destination to a session: hosts in turn, TLS as the policy has it, login."""
