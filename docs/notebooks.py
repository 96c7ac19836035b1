"""A tutorial as a Jupyter notebook: the page is the only source of both.

The Python of the page becomes cells with the printed outputs, the text between becomes Markdown. A relative
link leads nowhere outside the site, so only its text stays. The page's picture is the output of a cell
that shows the reader's own.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^<!-- picture: (\S+) -->\n\n!\[.*?\]\(\S+\)\n", re.MULTILINE)
SHOW = '```python\nfrom IPython.display import Image\n\nImage("{}")\n```\n'
# The text of a link may have brackets of its own, within code.
LINK = re.compile(r"\[((?:`[^`]*`|[^\]`])+)\]\((?!https?:)[^)]+\)")
COMMENT = re.compile(r"^<!-- .*? -->\n\n?", re.MULTILINE)


def write_notebook(page: Path, path: Path) -> None:
    """Write the notebook of a tutorial."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = page.parents[1] / "images" / f"tutorial_{page.stem}.png"
    made = notebook(page.read_text("utf-8"), picture.read_bytes())
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def notebook(text: str, picture: bytes | None = None) -> dict[str, Any]:
    """The notebook of a tutorial's text, in nbformat 4.5, with a PNG below the cell that shows one."""
    text = PICTURE.sub(lambda found: SHOW.format(found[1]), text)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(_cells(text))]
    for cell in cells:
        if picture is not None and "".join(cell["source"]).startswith("from IPython.display import Image"):
            cell["outputs"] = [_shown(picture, cell["execution_count"])]
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cells(text: str) -> Iterator[dict[str, Any]]:
    end, count = 0, 0
    for block in CODE.finditer(text):
        yield from _markdown(text[end : block.start()])
        end, count = block.end(), count + 1
        yield {
            "cell_type": "code", "metadata": {}, "source": _lines(block[1].rstrip("\n")),
            "execution_count": count, "outputs": _outputs(block[2] or ""),
        }  # fmt: skip
    yield from _markdown(text[end:])


def _markdown(text: str) -> Iterator[dict[str, Any]]:
    plain = LINK.sub(r"\1", COMMENT.sub("", text)).strip()
    if plain:
        yield {"cell_type": "markdown", "metadata": {}, "source": _lines(plain)}


def _outputs(printed: str) -> list[dict[str, Any]]:
    return [{"output_type": "stream", "name": "stdout", "text": _lines(printed)}] if printed else []


def _shown(picture: bytes, count: int) -> dict[str, Any]:
    data = {"image/png": b64encode(picture).decode()}
    return {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": count}


def _lines(text: str) -> list[str]:
    """The lines of a cell, with their ends: how Jupyter stores them."""
    return text.splitlines(keepends=True)
