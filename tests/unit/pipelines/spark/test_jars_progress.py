"""A download shows a bar per file on a terminal, and plain lines in a log."""

import io

from rich.console import Console
from rich.progress import Progress as RichProgress

from lakeshare_pipelines.spark.jars import DownloadProgress, open_stderr_progress


def a_download(progress: DownloadProgress) -> None:
    progress.begins("delta-spark", 2_000_000)
    progress.advances("delta-spark", 500_000)
    progress.message("delta-spark: cut; trying again")
    progress.begins("delta-spark", 2_000_000)
    progress.advances("delta-spark", 2_000_000)
    progress.ends("delta-spark")


def test_without_a_terminal_a_file_has_a_line_at_its_begin_and_end(capsys):
    with open_stderr_progress() as progress:
        a_download(progress)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "lakeshare: fetching delta-spark (2.0 MB)",
        "lakeshare: delta-spark: cut; trying again",
        "lakeshare: fetching delta-spark (2.0 MB)",
        "lakeshare: fetched delta-spark",
    ]


def test_on_a_terminal_a_second_attempt_starts_the_same_bar_again():
    screen = io.StringIO()
    with RichProgress(console=Console(file=screen, force_terminal=True, width=100)) as rich:
        a_download(DownloadProgress(rich))
        [task] = rich.tasks
        assert (task.completed, task.finished) == (2_000_000, True)
    assert "delta-spark" in screen.getvalue()
    assert "trying again" in screen.getvalue()
