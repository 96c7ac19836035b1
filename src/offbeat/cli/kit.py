"""The command that shows a site's kit, and the text of a policy that kits have."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from offbeat.cli.console import out
from offbeat.cli.keys import KeyGroup
from offbeat.core.extras import requires_extra

_POLICY = KeyGroup("offbeat.net.client.policy", "SitePolicy")


def kit(
    action: Annotated[
        Literal["show", "policy"],
        typer.Argument(metavar="show|policy", help="show all, or the policy's text"),
    ],
    file: Annotated[Path, typer.Argument(metavar="KIT", help="the kit's file")],
) -> None:
    """Show a site's kit, or print the policy in it.

    All of the kit is shown but its secret.
    """
    with requires_extra("net"):
        from offbeat.net.kit import KitFile

    site_kit = KitFile(file).read()
    if action == "policy":
        print(site_kit.policy, end="")  # noqa: T201
        return
    rows = {
        "site": site_kit.name, "server": site_kit.address,
        "fingerprint": site_kit.fingerprint or "none: the authorities that the system trusts",
        "expires": site_kit.ends,
        "made by": f"Offbeat {site_kit.made_by}", "format": str(site_kit.offbeat_kit),
    }  # fmt: skip
    for name, value in rows.items():
        out.print(f"{name:12} {value}", markup=False, soft_wrap=True)


def policy_template() -> str:
    """The text of a policy whose keys are all comments, with their meaning and their default."""
    lines = [
        "# What this site refuses to train, to evaluate and to send. Nothing here holds before the site's",
        "# operator gives it: offbeat kit policy KIT > policy.yaml, then --policy policy.yaml.",
        "# Each key has its default; take the # away before one to change it.",
    ]
    for key in _POLICY.keys:
        lines += ["", f"# {key.meaning[:1].upper()}{key.meaning[1:]}.", f"# {key.name}: {key.default}"]
    return "\n".join(lines) + "\n"
