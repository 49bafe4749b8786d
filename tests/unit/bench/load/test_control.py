from pathlib import Path

from bench.load.control import (
    Progress,
    RateFile,
    read_progress,
    rss_bytes,
    set_rate,
    write_progress,
)


def test_publishers_share_the_rate_and_see_it_once(tmp_path: Path) -> None:
    file = RateFile(tmp_path, share=4)
    assert file.changed() is None
    set_rate(tmp_path, 10)
    assert file.changed() == 2.5
    assert file.changed() is None
    set_rate(tmp_path, 0)
    assert file.changed() == 0


def test_a_rate_file_that_makes_no_sense_changes_nothing(tmp_path: Path) -> None:
    file = RateFile(tmp_path, share=1)
    for text in ("", "{}", '{"rate_per_s": "fast"}', '{"rate_per_s": -1}', '{"rate_per_s": NaN}'):
        (tmp_path / "rate.json").write_text(text)
        assert file.changed() is None


def test_progress_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "progress").mkdir()
    assert read_progress(tmp_path) == {}
    progress = Progress("p1", state="running")
    progress.count("b1")
    progress.count("b1")
    write_progress(tmp_path, progress)
    assert read_progress(tmp_path) == {"p1": progress}
    assert progress.done == 2
    assert progress.brokers == {"b1": 2}
    assert progress.rss_bytes > 1_000_000
    assert rss_bytes() > 1_000_000
