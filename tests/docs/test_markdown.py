"""The reader of our Markdown sees what it must: otherwise the other tests here prove nothing."""

from __future__ import annotations

from pathlib import Path

from tests.docs import markdown

SAMPLE = """\
# One `two` three!

See [there](other.md#part), not `[a](b)`.

```python
print("hello")
```

```text
hello
```

Words between.

```text
[not](a-link)
```

1. A list:

   ```sh
   limpet status
   ```

# One two three
"""


def test_blocks():
    found = list(markdown.blocks(SAMPLE))
    assert [(block.language, block.line, block.follows) for block in found] == [
        ("python", 6, False),
        ("text", 10, True),
        ("text", 16, False),
        ("sh", 22, False),
    ]
    assert found[3].text == "limpet status\n"


def test_links_are_those_of_the_prose():
    assert markdown.links(SAMPLE) == ["other.md#part"]


def test_anchors(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(SAMPLE)
    assert markdown.anchors(page) == {"one-two-three", "one-two-three-1"}
