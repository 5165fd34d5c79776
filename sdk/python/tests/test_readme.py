"""The examples of the documents run, one after the other, as a reader would type them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import forrst

from .servers import Server

FOLDER = Path(__file__).parent.parent
README = (FOLDER / "README.md").read_text()
COMING_FROM = (FOLDER / "coming-from.md").read_text()


def test_the_examples_run(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"^```python\n(.*?)^```$", README + COMING_FROM, re.MULTILINE | re.DOTALL)
    assert len(examples) > 8
    names: dict[str, Any] = {}
    clients: list[forrst.Client] = []
    for example in examples:
        exec(compile(example.replace("http://127.0.0.1:7420", server.url), "README.md", "exec"), names)
        if "client" in names:
            clients.append(names["client"])
    shown = capsys.readouterr().out
    assert "exporting under fence 0" in shown and "True nightly run 7 0" in shown and "cancelled" in shown

    class Task:
        def retry(self, countdown: float, exc: Exception) -> Exception:
            assert countdown > 0
            return exc

    names["rebuild_index"](Task(), 7)
    with clients[-1].lock("rebuild:7"), pytest.raises(forrst.ContendedError):
        names["rebuild_index"](Task(), 7)
    for client in clients:
        client.close()


def test_the_table_of_errors_is_complete() -> None:
    for name in forrst.__all__:
        if name.endswith("Error"):
            assert f"`{name}`" in README, name
