"""Pieces of text, without a database."""

from __future__ import annotations

import datetime

import pytest

from lien.cli import text
from lien.cli.events import Teller
from lien.cli.invocation import Invocation
from lien.drivers import urls
from lien.worker.events import Event, What


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain é 日本", "plain é 日本"),
        ("a\x1b[31m\r\n\t\x00\x7f\x9b", "a\\x1b[31m\\r\\n\\t\\x00\\x7f\\x9b"),
        ("\u202e\u2028\ud800\U000e0001", "\\u202e\\u2028\\ud800\\U000e0001"),
    ],
)
def test_line_escapes_what_a_terminal_obeys(raw, shown):
    assert text.line(raw) == shown


def test_block_keeps_lines_and_tabs():
    assert text.block("a\n\tb\x1b\r\n") == "a\n\tb\\x1b\\r\n"


def test_table_is_aligned_by_columns_on_the_screen():
    rows = text.table(("a", "b", "c"), [("日本", "1", "x" * 50), ("x", "22", "")], 20)
    assert rows == ["a     b   c", "日本  1   xxxxxxxxx…", "x     22"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 ms"), (0.0484, "48 ms"), (5, "5 s"), (90, "1.5 m"), (7200, "2 h"), (1e6, "11.6 d")],
)
def test_duration(seconds, shown):
    assert text.duration(seconds) == shown


def test_since_is_never_negative():
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    assert text.since(at, at - datetime.timedelta(seconds=5)) == 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p%40:w@h:1/d", "postgresql://u:***@h:1/d"),
        ("postgresql://u:p?w@h/d?a=b", "postgresql://u:***@h/d?a=b"),
        ("postgresql://h:1/d?password=a@b&x=1&SSLpassword=z", "postgresql://h:1/d?password=***&x=1&SSLpassword=***"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
        ("postgresql:///d?host=/tmp", "postgresql:///d?host=/tmp"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_masked(url, shown):
    assert urls.masked(url) == shown


def test_the_line_of_a_job():
    event = Event(what=What.SUCCEEDED, job_id=17, task="send_email", attempt=1, max_failures=20, seconds=0.048)
    assert Teller(Invocation()).text(event) == "\x1b[32m✓\x1b[0m send_email 17  48 ms  (attempt 1/20)"


@pytest.mark.parametrize("what", list(What))
def test_every_event_has_a_line_without_raw_control_characters(what):
    event = Event(what=what, job_id=1, task="t\x1b", error="lost \x07 postgresql://u:pw123@h/d", count=3, again_in=2)
    plain = Teller(Invocation()).text(event).replace("\x1b[0m", "")
    assert "\x07" not in plain
    assert "t\\x1b 1" in plain
    assert "pw123" not in plain


def test_a_reader_that_goes_away_stops_the_talk_not_the_worker(monkeypatch):
    def gone(*_args, **_kwargs):
        raise BrokenPipeError

    monkeypatch.setattr("click.echo", gone)
    teller = Teller(Invocation(json=True))
    teller(Event(what=What.READY))
    teller(Event(what=What.READY))
