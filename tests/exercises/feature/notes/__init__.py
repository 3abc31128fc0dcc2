"""Notes: a table that a duty and a loop write, and a command lists."""

from pgmta.features import Command, Feature

FEATURE = Feature(
    schema=("schema.sql",),
    commands={"notes": Command(place=".command:notes", line="List the notes.")},
    duties=(".work:DUTY",),
    loops={"notes": ".work:begin"},
    sections={"notes": ".config:Notes"},
    fixed=("notes",),
    more_keys={"retention": ".config:NotesRetention"},
    config_checks=(".config:problems",),
)
