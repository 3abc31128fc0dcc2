"""Callbacks: providers say later what became of mail that they took (docs/mail/callbacks.md)."""

from pgmta.features import Feature

FEATURE = Feature(
    needs=("providers",),
    schema=("schema.sql",),
    sections={"web/callbacks": ".settings:CALLBACKS"},
    more_keys={"web/limits": ".settings:CallbackLimits"},
    routes={"callbacks": ".routes:CALLBACKS"},
)
