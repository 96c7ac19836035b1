"""Long sentences of a page: what counts as a sentence, and what is no prose."""

import runpy
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "long_sentences.py"

PAGE = """# A heading of seven words is no sentence

One two three four five. Six seven eight nine ten eleven.
- One two three four
  five six.

| one two | three four five six seven |

```sh
one two three four five six seven
```

    one two three four five six seven
"""


def test_sentences_are_found_in_paragraphs_and_list_items_only() -> None:
    sentences = runpy.run_path(str(SCRIPT))["sentences"]
    assert sentences(PAGE, 5) == [
        (3, "Six seven eight nine ten eleven."),
        (4, "One two three four five six."),
    ]
    assert sentences(PAGE, 6) == []


def test_a_page_has_a_line_and_all_have_a_sum(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    done = subprocess.run(
        [sys.executable, SCRIPT, page, "--words", "5"], capture_output=True, text=True, check=True
    )
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["2", "2"]


def test_pages_that_scripts_write_are_left_out() -> None:
    pages = runpy.run_path(str(SCRIPT))["pages"]()
    assert "docs/run.md" in pages
    assert not {name for name in pages if name.startswith("docs/papers")}
