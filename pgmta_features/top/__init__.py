"""`queuectl top`: rates, the queue by next hop, hosts and workers, live on a terminal."""

from pgmta.features import Command, Feature

FEATURE = Feature(
    commands={
        "top": Command(
            path=".command:top",
            line="Show rates, the queue by next hop, failing and slow hosts, and workers, until q.",
            task="Next hops",
        )
    }
)
