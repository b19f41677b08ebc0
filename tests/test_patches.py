"""The patches task: images cut by hand, their roles, their parts, and what is said where images are missing.

Most tests run on images planted in a folder, so that they need nothing installed; those named `digits` and `fashion`
read the real ones.
"""

import gzip
import importlib.util
import sys
from bisect import bisect_left
from collections import Counter

import pytest
import torch
from pydantic import ValidationError

from tasks.images import DEBIAN_FOLDER, ImagesMissing, images
from tasks.patches import CLASS, MATCHED, PATCH, Patches
from workbench.batch import UNREAD
from workbench.task import Task, identity

with_digits = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")
with_fashion = pytest.mark.skipif(
    not (DEBIAN_FOLDER / "t10k-images-idx3-ubyte.gz").is_file(), reason="dataset-fashion-mnist is not installed"
)
NAMES = {"train": "train", "test": "t10k"}


def idx(values):
    """An array of bytes in the IDX format."""
    shape = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + shape + bytes(values.flatten().tolist())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """240 and 80 images of 28 × 28: one bright square each, more ink the later, every class equally often."""
    home = tmp_path_factory.mktemp("data")
    (home / "fashion-mnist").mkdir()
    for part, n in (("train", 240), ("test", 80)):
        generator = torch.Generator().manual_seed(n)
        pixels = torch.zeros(n, 28, 28, dtype=torch.uint8)
        for image in range(n):
            row, column = torch.randint(20, (2,), generator=generator).tolist()
            pixels[image, row : row + 8, column : column + 8] = 255 - n + image
        for name, values in (("images-idx3", pixels), ("labels-idx1", torch.arange(n) % 10)):
            with gzip.open(home / "fashion-mnist" / f"{NAMES[part]}-{name}-ubyte.gz", "wb") as file:
                file.write(idx(values))
    return home


@pytest.fixture
def planted(folder, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DATA", str(folder))
    return folder


def of(source, **arguments):
    return Patches(source=source, **arguments)


def cut(image, patch):
    """The patches of an image [row column], one after the other, each row by row."""
    starts = range(0, len(image), patch)
    return [[float(image[y + row][x + column]) for row in range(patch) for column in range(patch)]
            for y in starts for x in starts]  # fmt: skip


def places(mask):
    return set(mask.nonzero().flatten().tolist())


# What is drawn


@pytest.mark.parametrize("patch", [1, 2, 4, 7])
def test_every_image_its_patches_and_its_roles_by_hand(planted, patch):
    task = of("fashion", patch=patch, part="test")
    check(task, task.sample(12, seed=0), images("fashion", "test"))


@with_digits
@pytest.mark.parametrize("patch", [1, 2])
@pytest.mark.parametrize("part", ["train", "test"])
def test_every_image_of_digits_its_patches_and_its_roles_by_hand(patch, part):
    task = of("digits", patch=patch, part=part)
    check(task, task.sample(100, seed=0), images("digits", part))


def check(task, batch, shown):
    side, n_side = shown.pixels.shape[1], shown.pixels.shape[1] // task.patch
    assert batch.tokens.shape == (len(batch), task.length) == (len(batch), 1 + n_side**2)
    assert (
        batch.inputs["patches"].shape
        == (len(batch), n_side**2, task.d_patch)
        == (*batch.tokens[:, 1:].shape, task.patch**2)
    )
    whole = [bytes(image.flatten().tolist()) for image in shown.pixels]
    for example in range(len(batch)):
        assert batch.words(example) == ["<class>", *["<patch>"] * n_side**2]
        pixels = (task.pixels(batch)[example] * shown.full).round().to(torch.uint8)
        index = whole.index(bytes(pixels.flatten().tolist()))
        assert batch.labels[example].tolist() == [int(shown.classes[index])] + [UNREAD] * n_side**2
        by_hand = cut(shown.pixels[index].tolist(), task.patch)
        assert torch.allclose(batch.inputs["patches"][example], torch.tensor(by_hand) / shown.full, atol=1e-6, rtol=0)
        ink = [sum(patch) for patch in by_hand]
        border = {1 + y * n_side + x for y in range(n_side) for x in range(n_side) if {x, y} & {0, n_side - 1}}
        assert {name: places(mask[example]) for name, mask in batch.roles.items()} == {
            "class": {0},
            "patches": set(range(1, task.length)),
            "ink": {1 + at for at, value in enumerate(ink) if value * len(ink) > sum(ink)},
            "blank": {1 + at for at, value in enumerate(ink) if value == min(ink)},
            "border": border,
            "centre": set(range(1, task.length)) - border,
        }
    assert (batch.classes[:, 0] == CLASS).all() and (batch.classes[:, 1:] == PATCH).all()
    assert batch.valid.all() and batch.inputs["patches"].dtype == torch.float32 and side == task.patch * n_side


def test_patches_lie_between_no_ink_and_full_ink(planted):
    patches = of("fashion").sample(50, seed=0).inputs["patches"]
    assert patches.min() == 0 and 0.9 < patches.max() <= 1


def test_no_role_of_an_image_with_any_ink_is_empty(planted):
    batch = of("fashion").sample(100, seed=0)
    assert all(mask.any(1).all() for mask in batch.roles.values())
    assert not (batch.roles["ink"] & batch.roles["blank"]).any()


def test_an_image_without_ink_has_blank_patches_only():
    roles = Patches()._roles(torch.zeros(1, 16, 4, dtype=torch.uint8))
    assert places(roles["ink"][0]) == set() and places(roles["blank"][0]) == set(range(1, 17))


def test_training_draws_every_image_equally_often_and_again(planted):
    n, task = 4800, of("fashion")
    drawn = Counter(task.pixels(task.sample(n, seed=0)).sum((1, 2)).round(decimals=3).tolist())
    assert len(drawn) == 240
    assert all(abs(count - 20) < 5 * 20**0.5 for count in drawn.values())


def test_testing_draws_every_image_once_and_no_more(planted):
    task = of("fashion", part="test")
    drawn = task.sample(80, seed=0)
    assert task.n_images == 80 and len({bytes(row.flatten().numpy()) for row in drawn.inputs["patches"]}) == 80
    with pytest.raises(
        ValueError, match="asked for 81 examples, and fashion has 80 images for testing, each drawn once"
    ):
        task.sample(81, seed=0)


def test_the_same_seed_gives_the_same_batch_and_another_seed_another(planted):
    for part in ("train", "test"):
        task = of("fashion", part=part)
        assert task.sample(50, seed=7).digest() == task.sample(50, seed=7).digest() != task.sample(50, seed=8).digest()


def test_drawing_leaves_the_global_random_state_alone(planted):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    of("fashion").corrupt(of("fashion").sample(20, seed=1), seed=1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("n", [0, -3])
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_batch_of_no_examples_is_refused(n, part):
    with pytest.raises(ValueError, match=f"asked for {n} examples; ask for 1 or more"):
        Patches(part=part).sample(n, seed=0)


# Parts


@with_digits
def test_no_digit_is_in_both_parts_and_together_they_are_all():
    parts = [{bytes(image.flatten().tolist()) for image in images("digits", part).pixels} for part in ("train", "test")]
    assert not parts[0] & parts[1]
    assert [len(images("digits", part).pixels) for part in ("train", "test")] == [1430, 367]


@with_fashion
def test_the_parts_of_fashion_are_the_published_ones(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    for part, per_class in (("train", 6000), ("test", 1000)):
        shown = images("fashion", part)
        assert shown.pixels.shape == (10 * per_class, 28, 28) and int(shown.pixels.max()) == 255
        assert shown.classes.bincount().tolist() == [per_class] * 10
    assert shown.classes[:5].tolist() == [9, 2, 1, 1, 6], "ankle boot, pullover, trouser, trouser, shirt"


@pytest.mark.parametrize("source", [pytest.param("digits", marks=with_digits), "fashion"])
def test_both_parts_have_the_same_words_and_shapes(planted, source):
    train, test = (of(source, part=part) for part in ("train", "test"))
    assert train != test and train.vocabulary == test.vocabulary
    one, two = train.sample(5, seed=0), test.sample(5, seed=0)
    assert one.tokens.shape == two.tokens.shape and one.inputs["patches"].shape == two.inputs["patches"].shape
    assert identity(train) != identity(test)


# The counterfactual


def test_corrupt_shows_something_else_with_about_as_much_ink_by_hand(planted):
    task = of("fashion", part="test")
    clean = task.sample(80, seed=0)
    follows_the_rule(task, clean, task.corrupt(clean, seed=1), images("fashion", "test"))


@with_digits
def test_corrupt_shows_another_digit_with_about_as_much_ink_by_hand():
    task = Patches()
    clean = task.sample(200, seed=0)
    other = task.corrupt(clean, seed=1)
    follows_the_rule(task, clean, other, images("digits", "train"))
    ink = clean.inputs["patches"].sum((1, 2))
    assert ((other.inputs["patches"].sum((1, 2)) - ink).abs() / ink).median() < 0.01


def follows_the_rule(task, clean, other, shown):
    """The image is one of ten of other classes around the place of the clean one's ink, with its own roles."""
    whole = [bytes(image.flatten().tolist()) for image in shown.pixels]
    check(task, other, shown)
    for example in range(len(clean)):
        pixels = [(task.pixels(batch)[example] * shown.full).round().int() for batch in (clean, other)]
        kind = int(clean.labels[example, 0])
        rivals = [(int(image.sum()), at) for at, image in enumerate(shown.pixels) if int(shown.classes[at]) != kind]
        rivals.sort()
        start = bisect_left(rivals, (int(pixels[0].sum()), -1)) - MATCHED // 2
        start = min(max(start, 0), len(rivals) - MATCHED)
        around = [at for _, at in rivals[start : start + MATCHED]]
        assert whole.index(bytes(pixels[1].flatten().tolist())) in around
        assert int(other.labels[example, 0]) != kind


def test_corrupt_takes_each_of_the_ten_equally_often(planted):
    n, task = 4000, of("fashion", part="test")
    clean = task.encode("31").select(torch.zeros(n, dtype=torch.long))
    drawn = Counter(task.pixels(task.corrupt(clean, seed=0)).sum((1, 2)).round(decimals=3).tolist())
    assert len(drawn) == MATCHED and all(abs(count / n - 0.1) < 4 * (0.09 / n) ** 0.5 for count in drawn.values())


def test_corrupt_is_the_same_for_the_same_seed_only(planted):
    task, clean = of("fashion"), of("fashion").sample(50, seed=0)
    assert task.corrupt(clean, seed=1).digest() == task.corrupt(clean, seed=1).digest()
    assert task.corrupt(clean, seed=1).digest() != task.corrupt(clean, seed=2).digest()


def test_a_batch_of_another_task_is_refused(planted):
    batch = of("fashion", patch=4).sample(3, seed=0)
    for method in (lambda: of("fashion").corrupt(batch, seed=0), lambda: of("fashion").pixels(batch)):
        with pytest.raises(
            ValueError, match=r"which has patches \[16 49\]: it has \[49, 16\] and the vocabulary T-shirt"
        ):
            method()


# Images by number, and put together again


def test_encode_shows_the_image_of_that_number(planted):
    task = of("fashion", part="test")
    for number in (0, 31, 79):
        shown = images("fashion", "test")
        batch = task.encode(f" {number} ")
        assert torch.equal((task.pixels(batch)[0] * 255).round().to(torch.uint8), shown.pixels[number])
        assert batch.labels[0, 0] == number % 10


@pytest.mark.parametrize("text", ["80", "-1", "shirt", "", "1 2"])
def test_encode_says_which_numbers_there_are(planted, text):
    with pytest.raises(ValueError, match="is no image: the part 'test' of fashion has numbers from 0 to 79"):
        of("fashion", part="test").encode(text)


# Guessing


def test_guessing_without_looking_is_the_share_of_a_class(planted):
    assert of("fashion").guessing() == {"any": 0.1, "majority": 0.1}


@with_digits
@pytest.mark.parametrize("part", ["train", "test"])
def test_guessing_a_digit_is_the_share_of_the_most_frequent(part):
    counts = Counter(images("digits", part).classes.tolist())
    assert Patches(part=part).guessing() == {"any": 0.1, "majority": max(counts.values()) / sum(counts.values())}
    assert Patches.ceiling is None


# Where images are missing or broken


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr("tasks.images._loaded", sys.modules["tasks.images"]._loaded.__wrapped__)
    with pytest.raises(ImagesMissing, match="scikit-learn, which is not installed: pip install scikit-learn"):
        Patches().sample(1, seed=0)


def test_without_the_files_it_says_which_package_has_them(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    with pytest.raises(
        ImagesMissing, match=r"apt-get install dataset-fashion-mnist; elsewhere .* set WORKBENCH_DATA"
    ) as told:
        of("fashion").sample(1, seed=0)
    assert f"no train-images-idx3-ubyte.gz in {tmp_path / 'fashion-mnist'}" in str(told.value)


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\x0d\x01" + bytes(8), idx(torch.zeros(3, 28, 28, dtype=torch.uint8))[:-1]]
)
def test_a_broken_file_is_named(tmp_path, monkeypatch, content):
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    (tmp_path / "fashion-mnist").mkdir()
    (tmp_path / "fashion-mnist" / "t10k-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte is no whole IDX file of bytes; get it anew"):
        of("fashion", part="test").sample(1, seed=0)


def test_files_may_be_unpacked(planted, tmp_path, monkeypatch):
    (tmp_path / "fashion-mnist").mkdir()
    for path in (planted / "fashion-mnist").iterdir():
        (tmp_path / "fashion-mnist" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    packed = of("fashion").sample(9, seed=0)
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    assert of("fashion").sample(9, seed=0).digest() == packed.digest()


# The task as a value


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"patch": 3}, "patches of 3 pixels a side do not cut images of 8 × 8 .* of digits there are patches of 1, 2"),
        ({"patch": 4}, "into three or more a side"),
        ({"source": "fashion", "patch": 14}, "of fashion there are patches of 1, 2, 4, 7"),
        ({"patch": 0}, "patch"),
        ({"source": "faces"}, "source"),
        ({"part": "all"}, "part"),
        ({"colour": True}, "colour"),
    ],
)
def test_arguments_that_no_image_can_meet_are_refused(arguments, said):
    with pytest.raises(ValidationError, match=said):
        Patches(**arguments)


def test_the_patch_is_the_sources_own_where_none_is_said():
    assert Patches().model_dump() == {"source": "digits", "patch": 2, "part": "train"}
    assert of("fashion").model_dump() == {"source": "fashion", "patch": 7, "part": "train"}
    assert (of("fashion").length, of("fashion").d_patch) == (17, 49)
    assert of("fashion", patch=4).patch == 4


def test_a_task_is_frozen_equal_by_value_and_an_exact_round_trip():
    task = of("fashion", patch=4, part="test")
    with pytest.raises(ValidationError, match="frozen"):
        task.patch = 7
    assert Patches.model_validate_json(task.model_dump_json()) == task != Patches()


def test_patches_offers_what_a_task_must(planted):
    assert isinstance(of("fashion"), Task) and Patches.name == "patches"
    assert identity(of("fashion")) == identity(of("fashion"))
