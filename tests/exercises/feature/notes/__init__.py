"""Notes: a table that a duty and a loop write, and that a command and a page list."""

from pgmta.features import Command, Feature

FEATURE = Feature(
    schema=("schema.sql",),
    commands={"notes": Command(path=".command:notes", line="List the notes.")},
    duties=(".work:DUTY",),
    loops={"notes": ".work:begin"},
    sections={"notes": ".config:Notes", "web/notes": ".config:NotesPage"},
    more_keys={"retention": ".config:NotesRetention"},
    config_checks=(".config:problems",),
    routes={"pages": ".page:PAGE"},
)
