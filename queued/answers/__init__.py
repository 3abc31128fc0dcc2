"""Classes of the answers of next hops, by the rules of answers.yaml (pure)."""
