"""The key of `queuectl up`, from which secrets of endpoints are derived."""

from queued.cli.options.first_step import FirstStep

STEP = FirstStep(keys=("webhook",))
