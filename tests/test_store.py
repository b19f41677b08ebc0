"""The store of measured cells: the same rows back, damage noticed, an index that may be lost, several processes."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from workbench.store import INDEX, Store

TESTS = Path(__file__).parent


def rows(seed=0, n=5, reason=None):
    random = np.random.default_rng(seed)
    loss = random.random(n, dtype=np.float32)
    loss[0] = np.nan
    reasons = pd.array([reason] + [None] * (n - 1), dtype="str")
    return pd.DataFrame({"example": np.arange(n, dtype=np.int32), "skipped": reasons, "loss": loss})


CELLS = {"a": rows(0), "b": rows(1, reason="nothing to act on"), "c": rows(2)}
ABOUT = {key: {"task": "lookup", "notes": [f"a note of {key} – ←"]} for key in CELLS}


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "cells")
    made.add({"a": CELLS["a"], "b": CELLS["b"]}, ABOUT)
    made.add({"c": CELLS["c"]}, ABOUT)
    return made


def block_of(store, key):
    cells = store.cells()
    return cells.loc[cells["cell"] == key, "block"].item()


def part(store, key, ending):
    return store.blocks / f"{block_of(store, key)}.{ending}"


def same(one, other):
    assert list(one) == list(other)
    for key in one:
        pd.testing.assert_frame_equal(one[key], other[key], check_exact=True)


def other_process(store, code):
    """Runs code in another process that has `store`; gives what it prints."""
    text = f"from test_store import *\nstore = Store({str(store.folder)!r})\n{textwrap.dedent(code)}"
    out = subprocess.run([sys.executable, "-c", text], cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert out.returncode == 0, out.stderr
    return out.stdout.strip()


# Round trips


def test_cells_come_back_as_they_were_added_with_types_nan_and_reasons(store):
    same(store.read(["a", "b", "c"]), CELLS)
    assert store.read(["c"])["c"].dtypes.to_dict() == CELLS["c"].dtypes.to_dict()


def test_cells_come_back_in_the_order_in_which_they_are_asked_for(store):
    assert list(store.read(["c", "a", "b"])) == ["c", "a", "b"]
    assert list(store.about(["c", "a"])) == ["c", "a"]


def test_what_is_said_of_a_cell_comes_back(store):
    assert store.about(["a", "b", "c", "d"]) == ABOUT


def test_cells_that_are_not_there_are_missing_in_order(store):
    assert store.missing(["z", "a", "y", "c"]) == ["z", "y"]
    assert store.read(["z"]) == {}


def test_cells_with_other_columns_share_a_block(tmp_path):
    store = Store(tmp_path)
    wide = CELLS["a"].assign(weight=np.float32(0.5))
    store.add({"narrow": CELLS["c"], "wide": wide}, {})
    found = store.read(["narrow", "wide"])
    pd.testing.assert_frame_equal(found["wide"], wide, check_exact=True)
    assert found["narrow"]["weight"].isna().all()
    assert found["narrow"]["weight"].dtype == np.float32


def test_no_cells_are_no_block(tmp_path):
    with pytest.raises(ValueError, match="one cell or more"):
        Store(tmp_path).add({}, {})


def test_the_same_cells_added_twice_are_one_block(store):
    before = sorted(os.listdir(store.blocks))
    store.add({"a": CELLS["a"], "b": CELLS["b"]}, ABOUT)
    store.add({"c": CELLS["c"]}, ABOUT)
    assert sorted(os.listdir(store.blocks)) == before
    assert list(store.cells()["cell"].sort_values()) == ["a", "b", "c"]


def test_a_cell_that_is_in_two_blocks_is_read_from_one(store):
    store.add({"c": CELLS["c"], "a": CELLS["a"]}, ABOUT)
    same(store.read(["a", "b", "c"]), CELLS)
    store.set_aside(["a"])
    assert store.missing(["a", "b", "c"]) == ["a", "b"]


def test_the_files_of_a_store_are_the_same_bytes_each_time(store, tmp_path):
    again = Store(tmp_path / "again")
    again.add({"c": CELLS["c"]}, ABOUT)
    again.add({"a": CELLS["a"], "b": CELLS["b"]}, ABOUT)
    contents = [{path.name: path.read_bytes() for path in one.blocks.iterdir()} for one in (store, again)]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 4


def test_looking_into_a_store_that_is_not_there_makes_none(tmp_path):
    store = Store(tmp_path / "none")
    assert (len(store.cells()), store.missing(["a"]), store.damaged(), store.prune()) == (0, ["a"], [], 0)
    assert not (tmp_path / "none").exists()


def test_a_store_may_be_moved(store, tmp_path):
    shutil.move(store.folder, tmp_path / "elsewhere")
    same(Store(tmp_path / "elsewhere").read(["a", "b", "c"]), CELLS)


# Damage


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-20])


def alter(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


def empty(path):
    path.write_bytes(b"")


def say_other_notes(path):
    said = json.loads(path.read_text())
    said["cells"]["a"]["notes"] = ["nothing to note"]
    path.write_text(json.dumps(said))


def say_other_cells(path):
    path.write_text(path.read_text().replace('"a": {', '"x": {'))


def no_table(path):
    path.write_text("[1, 2]")


DAMAGES = [
    ("parquet", Path.unlink), ("parquet", cut_short), ("parquet", alter), ("parquet", empty), ("json", alter),
    ("json", empty), ("json", cut_short), ("json", say_other_notes), ("json", say_other_cells), ("json", no_table),
]  # fmt: skip
each_damage = pytest.mark.parametrize(("ending", "damage"), DAMAGES, ids=[f"{e} {d.__name__}" for e, d in DAMAGES])


@each_damage
def test_a_damaged_block_is_moved_aside_and_can_be_added_again(store, ending, damage):
    name, path = block_of(store, "a"), part(store, "a", ending)
    damage(path)
    same(Store(store.folder).read(["a", "b", "c"]), {"c": CELLS["c"]})
    assert store.missing(["a", "b", "c"]) == ["a", "b"]
    assert {path.stem for path in (store.folder / "damaged").iterdir()} == {name}
    assert not part(store, "c", "json").with_name(f"{name}.json").exists()
    store.add({"a": CELLS["a"], "b": CELLS["b"]}, ABOUT)
    same(Store(store.folder).read(["a", "b", "c"]), CELLS)
    assert store.about(["a"]) == {"a": ABOUT["a"]}


@each_damage
def test_a_check_names_a_damaged_block_also_where_the_index_is_lost(store, ending, damage):
    name = block_of(store, "a")
    damage(part(store, "a", ending))
    (store.folder / INDEX).unlink()
    assert store.damaged() == [name]
    assert store.damaged() == []
    assert store.missing(["a", "b", "c"]) == ["a", "b"]


def test_a_whole_store_has_no_damage(store):
    assert store.damaged() == []
    same(store.read(["a", "b", "c"]), CELLS)


def test_a_manifest_that_is_gone_takes_its_cells_with_it(store):
    part(store, "a", "json").unlink()
    assert store.missing(["a", "b", "c"]) == ["a", "b"]


def test_a_block_that_is_set_aside_is_not_there(store):
    store.set_aside(["b"])
    assert store.missing(["a", "b", "c"]) == ["a", "b"]
    assert len(list((store.folder / "damaged").iterdir())) == 2


# The index


def lost(path):
    path.unlink()


def no_database(path):
    path.write_bytes(b"this is no database" * 500)


def no_content(path):
    path.write_bytes(b"")


def half(path):
    path.write_bytes(path.read_bytes()[:9000])


def scrambled(path):
    raw = bytearray(path.read_bytes())
    raw[4096:] = os.urandom(len(raw) - 4096)
    path.write_bytes(bytes(raw))


def of_another_version(path):
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE blocks (name TEXT, extent INTEGER, more TEXT)")
    other.execute("PRAGMA user_version = 99")
    other.commit()
    other.close()


def of_no_version(path):
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE blocks (block TEXT PRIMARY KEY)")
    other.commit()
    other.close()


FATES = [lost, no_database, no_content, half, scrambled, of_another_version, of_no_version]


@pytest.mark.parametrize("fate", FATES, ids=lambda fate: fate.__name__)
def test_an_index_that_cannot_be_used_is_made_anew(store, fate):
    before = store.cells()
    fate(store.folder / INDEX)
    pd.testing.assert_frame_equal(Store(store.folder).cells(), before)
    same(store.read(["a", "b", "c"]), CELLS)
    store.add({"d": rows(4)}, {})
    assert store.missing(["a", "d"]) == []
    with sqlite3.connect(store.folder / INDEX) as index:
        assert index.execute("SELECT COUNT(*) FROM cells").fetchone() == (4,)
    index.close()


def test_an_index_in_another_hand_is_done_without(store, monkeypatch):
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout: connect(path, timeout=0.01))
    other = connect(store.folder / INDEX)
    other.execute("BEGIN EXCLUSIVE")
    same(store.read(["a", "c"]), {key: CELLS[key] for key in "ac"})
    store.add({"d": rows(4)}, {})
    assert store.missing(["d", "e"]) == ["e"]
    other.rollback()
    other.close()
    assert store.missing(["a", "d", "e"]) == ["e"]


def test_an_index_that_cannot_be_opened_is_done_without(store):
    (store.folder / INDEX).unlink()
    (store.folder / INDEX).mkdir()
    same(store.read(["a", "b", "c"]), CELLS)
    assert len(store.cells()) == 3


def test_a_store_on_which_only_reading_is_allowed_is_read(store):
    """A process without any rights but to read: root gives its own up."""
    for path in [store.folder, *store.folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = """
    list(store.read(["a"]))  # what reads is loaded while it can be
    if os.getuid() == 0:
        os.setuid(65534)
    print(len(store.cells()), store.missing(["a", "z"]), list(store.read(["a", "b", "c"])), store.damaged())
    """
    above = [one for one in store.folder.parents if one.stat().st_uid == os.getuid() and one != Path("/")]
    modes = [one.stat().st_mode for one in above]
    try:
        for one in above:
            one.chmod(one.stat().st_mode | 0o555)
        assert other_process(store, code) == "3 ['z'] ['a', 'b', 'c'] []"
        (store.folder / INDEX).unlink()
        assert other_process(store, code) == "3 ['z'] ['a', 'b', 'c'] []"
    finally:
        for one, mode in zip(above, modes, strict=True):
            one.chmod(mode)
        for path in [store.folder, *store.folder.rglob("*")]:
            path.chmod(0o755)


def test_what_another_process_adds_and_removes_is_seen_at_once(store):
    assert store.missing(["d"]) == ["d"]
    other_process(store, "store.add({'d': rows(4)}, {'d': {'notes': ['other']}})")
    assert store.missing(["d"]) == []
    assert store.about(["d"]) == {"d": {"notes": ["other"]}}
    other_process(store, "store.prune(['a'])")
    assert store.missing(["a", "c", "d"]) == ["c", "d"]


def test_a_settled_store_sees_what_is_added_later(store, monkeypatch):
    """A folder whose time of change is old is not looked through again; it is once that changes."""
    monkeypatch.setattr("workbench.index.SETTLED", -1.0)
    assert len(store.cells()) == 3
    monkeypatch.setattr("workbench.index.manifests", pytest.fail)
    assert store.missing(["a", "d"]) == ["d"]
    monkeypatch.undo()
    unentered = "import workbench.store\nworkbench.store.enter = lambda *_: None"
    other_process(store, f"{unentered}\nstore.add({{'d': rows(4)}}, {{}})")
    assert store.missing(["a", "d"]) == []


# Claims


def test_a_cell_in_one_hand_is_in_no_other(store):
    other = Store(store.folder)
    assert store.take(["x", "y"])
    assert not other.take(["y", "z"])
    assert other.take(["z"])
    assert not store.take(["z"])
    store.give(["y"])
    assert other.take(["y"])
    assert not other.take(["x"])
    other.give(["y", "z"])
    store.give(["x"])


def test_a_cell_in_our_own_hand_is_not_taken_twice(store):
    assert store.take(["x"])
    assert not store.take(["x"])
    store.give(["x"])
    assert store.take(["x"])
    store.give(["x"])


def test_nothing_is_left_of_what_was_let_go(store):
    store.take(["x"])
    assert len(list(store.claims.folder.glob("*.json"))) == 1
    store.give(["x"])
    assert [path.name for path in store.claims.folder.iterdir() if path.suffix] == []


def test_a_killed_process_lets_go(store):
    code = "print(store.take(['x', 'y']), flush=True)\nos.kill(os.getpid(), 9)"
    text = f"from test_store import *\nstore = Store({str(store.folder)!r})\n{code}"
    out = subprocess.run([sys.executable, "-c", text], cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert (out.returncode, out.stdout.strip()) == (-9, "True")
    assert len(list(store.claims.folder.glob("*.json"))) == 1
    assert store.take(["y"])
    store.give(["y"])
    assert not list(store.claims.folder.glob("*.json"))


def test_what_a_living_process_lets_go_can_be_taken(store):
    code = f"""
    from test_store import *
    import time
    store = Store({str(store.folder)!r})
    store.take(["x"])
    print("taken", flush=True)
    time.sleep(1)
    store.add({{"x": rows(9)}}, {{}})
    store.give(["x"])
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], cwd=TESTS, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"taken\n"
        assert not store.take(["x"])
        while not store.take(["x"]):
            time.sleep(0.05)
        assert store.missing(["x"]) == []
        store.give(["x"])


# Pruning


def test_pruning_removes_what_belongs_to_no_cell_and_tells_its_size(store):
    cut_short(part(store, "c", "parquet"))
    store.read(["c"])
    orphan, partial = store.blocks / "0123.parquet", store.blocks / ".0123.json.ff.partial"
    orphan.write_bytes(b"12345")
    partial.write_bytes(b"123")
    aside = sum(path.stat().st_size for path in (store.folder / "damaged").iterdir())
    assert store.prune(None) == 8 + aside
    assert len(list(store.blocks.iterdir())) == 2
    assert not list((store.folder / "damaged").iterdir())
    same(store.read(["a", "b"]), {key: CELLS[key] for key in "ab"})


def test_a_block_is_kept_with_any_of_its_cells(store):
    size = sum(part(store, "c", ending).stat().st_size for ending in ("json", "parquet"))
    assert store.prune(["b"]) == size
    assert store.missing(["a", "b", "c"]) == ["c"]


def test_pruning_everything_leaves_no_block(store):
    assert store.prune() > 0
    assert list(store.blocks.iterdir()) == []
    assert len(store.cells()) == 0


def test_pruning_keeps_what_is_added_meanwhile(store):
    """Keeping every cell is said as such: a list of cells is old once it is made."""
    listed = list(store.cells()["cell"])
    store.add({"d": rows(4)}, {})
    assert Store(store.folder).prune(None) == 0
    assert store.missing([*listed, "d"]) == []


def test_two_processes_add_many_blocks_and_lose_none(store):
    code = """
    from test_store import *
    import sys
    store, name = Store(sys.argv[1]), sys.argv[2]
    for i in range(15):
        store.add({f"both {i}": rows(i)}, {})
        store.add({f"{name} {i}": rows(100 + i)}, {})
    """
    both = [
        subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), store.folder, name], cwd=TESTS) for name in "pq"
    ]
    assert [one.wait(60) for one in both] == [0, 0]
    wanted = {f"both {i}": rows(i) for i in range(15)}
    wanted |= {f"{name} {i}": rows(100 + i) for name in "pq" for i in range(15)}
    same(store.read(list(wanted)), wanted)
    cells = store.cells()["cell"]
    assert cells.is_unique
    assert set(cells) == {*wanted, "a", "b", "c"}
    assert store.damaged() == []
