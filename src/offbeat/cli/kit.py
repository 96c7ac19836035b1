"""What a site's kit has, in words, and the text of a policy that kits have."""

from typing import TYPE_CHECKING

from offbeat.cli.console import out, print_json
from offbeat.cli.keys import KeyGroup

if TYPE_CHECKING:
    from offbeat.net.kit import Kit

_POLICY = KeyGroup("offbeat.net.client.policy", "SitePolicy")


def show_kit(kit: "Kit", *, as_json: bool) -> None:
    """Print all of a kit but its secret."""
    rows = {
        "site": kit.name, "server": kit.address,
        "fingerprint": kit.fingerprint or "none: the authorities that the system trusts",
        "certificate": "none" if kit.certificate is None else "the site's own, with its key",
        "expires": kit.ends,
        "policy": "a text for the site's operator: --out FILE writes it",
        "made by": f"Offbeat {kit.made_by}", "format": str(kit.offbeat_kit),
    }  # fmt: skip
    if as_json:
        print_json({**rows, "policy": kit.policy})
        return
    for name, value in rows.items():
        out.print(f"{name:12} {value}", markup=False, soft_wrap=True)


def policy_template() -> str:
    """The text of a policy whose keys are all comments, with their meaning and their default."""
    lines = [
        "# What this site refuses to train, to evaluate and to send. Nothing here holds before the site's",
        "# operator gives it: offbeat check KIT --offline -o policy.yaml, then --policy policy.yaml.",
        "# Each key has its default; take the # away before one to change it.",
    ]
    for key in _POLICY.keys:
        lines += ["", f"# {key.meaning[:1].upper()}{key.meaning[1:]}.", f"# {key.name}: {key.default}"]
    return "\n".join(lines) + "\n"
