"""Studies on a Ray cluster of two nodes on this machine: lost workers, wrapped models, errors, the same result."""

import os
from pathlib import Path

import pandas as pd
import pytest
import torch
from small import TASK
from test_resuming import CONDITIONS, hugging_face, model, models, ran, study

from tasks.lookup import Lookup
from workbench import Edges, cut, run_study, wrap
from workbench.store import Store

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'attention-workbench[ray]'")
pytestmark = [
    pytest.mark.slow,
    # Ray's own, of its clients' sockets and of what it will change.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def address():
    """A cluster of two nodes of one CPU each. Workers find the tests by the path that they get."""
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [before])])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def equal(one, other):
    for a, b in zip(one, other, strict=True):
        pd.testing.assert_frame_equal(a, b, check_exact=True)


class Once(Lookup):
    """The first worker that is handed it is killed."""

    marks: str

    def __reduce__(self):
        return (once, (self.marks,))


def once(marks):
    folder = Path(marks)
    try:
        (folder / "killed").touch(exist_ok=False)
    except FileExistsError:
        return Once(marks=marks)
    os.kill(os.getpid(), 9)


def test_two_hundred_cells_on_two_nodes_with_a_worker_killed_are_those_of_one_process(address, tmp_path):
    conditions = {f"{name} {i}": edits for i in range(5) for name, edits in list(CONDITIONS.items())[:4]}
    wide, given = study(conditions=conditions), models(10)
    task = Once(marks=str(tmp_path))
    found = ran(tmp_path / "store", wide, given, task, executor="ray", address=address)
    assert (tmp_path / "killed").exists()
    equal(found, ran(None, wide, given))
    assert len(found[0]) == 200 * wide.n
    assert not ray.is_initialized()
    assert len(Store(tmp_path / "store").cells()) == 4 * 10


def test_a_study_begun_on_ray_is_gone_on_with_in_this_process(address, tmp_path):
    some = study(conditions={name: CONDITIONS[name] for name in ("clean", "cut")})
    ran(tmp_path, some, executor="ray", address=address)
    assert len(Store(tmp_path).cells()) == 6
    equal(ran(tmp_path), ran())


def test_an_error_on_a_node_arrives_with_its_type_and_words(address):
    wrong = study(conditions={"clean": (), "cut": (cut(Edges(layer=0, dest="last", source="anwser")),)})
    said = []
    for how in ({}, {"executor": "ray", "address": address}):
        with pytest.raises(KeyError) as caught:
            ran(None, wrong, **how)
        assert caught.type is KeyError
        said.append(caught.value.args)
    assert said[0] == said[1]


@pytest.mark.parametrize("executor", ["pool", "ray"])
def test_a_wrapped_model_is_measured_elsewhere_as_here(address, executor):
    torch.manual_seed(0)
    wrapped = {"gpt2": [wrap(hugging_face())]}
    plain = study(derived={}, conditions={name: CONDITIONS[name] for name in ("clean", "cut", "patch", "zero")})
    how = {"executor": executor, **({"address": address} if executor == "ray" else {"processes": 1})}
    equal(ran(None, plain, wrapped, **how), ran(None, plain, wrapped))


def test_a_cluster_that_is_there_already_is_used_and_left_alone(address):
    ray.init(address=address, log_to_driver=False)
    try:
        found = run_study(study(), TASK, {"one": [model(0)]}, executor="ray", progress=False)
        equal(found, ran(given={"one": [model(0)]}))
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_node_that_is_lost_is_done_without(tmp_path):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    add, lost = Store.add, []

    def losing(self, *args):
        if not lost:
            lost.append(cluster.remove_node(second, allow_graceful=False))
        return add(self, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Store, "add", losing)
        found = ran(tmp_path, given=models(6), executor="ray", address=cluster.address)
    equal(found, ran(given=models(6)))
    assert lost == [True] or lost == [None]
    cluster.shutdown()
