"""A report's page, as a browser reads it."""

import gzip
import json
from base64 import b64decode
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Collects what a browser would load, run and show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.shown: list[str] = []
        self.options: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.options += [value or "" for name, value in attrs if (tag, name) == ("option", "value")]
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script":
            self.scripts.append(data)
        else:
            self.shown.append(data)

    def data(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(gzip.decompress(b64decode(self.scripts[0])))
        return loaded
