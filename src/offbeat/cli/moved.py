"""What to type instead of a command or an option that another one has taken the place of."""

MOVED = {
    "archive": "offbeat serve RECIPE --state DIR --set server.archive=SECONDS",
    "certificate": "offbeat enrol --state DIR --host NAME",
    "dashboard-token": "offbeat enrol --dashboard --state DIR",
    "journal": "offbeat replay RUN --print",
    "kit": "offbeat check KIT --offline",
    "statistics": "offbeat report RUN",
}
"""By the name of a command that there was, what to type instead."""

_ALGORITHM = dict.fromkeys(("--algorithm", "--algorithms", "-a"), "--set algorithm=NAME")
_INITIAL = {"--initial": "--set initial=FILE"}
OPTIONS = {
    "run": {**_ALGORITHM, **_INITIAL, "--seeds": "--seed N, or use offbeat compare"},
    "federate": _ALGORITHM,
    "serve": {**_ALGORITHM, **_INITIAL, "--seed": "--set seed=N"},
    "compare": {
        "--algorithms": "--algorithm NAME for each",
        "--jobs": "--workers N",
        "-j": "--workers N",
        "--seed": "--seeds N, or --set seed=N",
    },
    "simulate-like": {"--world-out": "--out FILE.yaml", "--only-fit": "--out FILE.yaml alone"},
    "enrol": {"--token-out": "--out FILE without --address"},
    "check": {"--print-policy": "--offline --out FILE"},
}
"""By a command's name, what to give instead of an option that it had, or that another command has."""
