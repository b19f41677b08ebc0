"""Where the cells of a study are measured: in this process, in a pool of processes, on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from workbench.checkpoints import Trained
from workbench.devices import one_thread
from workbench.measuring import Cell, Shared, measure
from workbench.workers import context, end_with_parent, script_left_alone, unbroken

Kind = Literal["local", "pool", "ray"]
KINDS: tuple[Kind, ...] = ("local", "pool", "ray")
RETRIES = 3
"""How often a block is begun again whose worker died."""


@dataclass(frozen=True, eq=False)
class Order:
    """A block to be measured: a model under some conditions, each with its cell's key; `part` says which of the studies
    that are run together it belongs to."""

    part: int
    label: str
    trained: Trained
    cells: Mapping[str, str]


Measured = Callable[[Order, dict[str, Cell]], Any]
Begin = Callable[[Order, bool], Sequence[str] | None]
"""(order, whether to wait for others) → the conditions still to be measured; None where another process does it now."""


def execute_orders(
    kind: str,
    commons: Sequence[Shared],
    orders: Sequence[Order],
    begin: Begin,
    measured: Measured,
    *,
    processes: int | None = None,
    address: str | None = None,
) -> None:
    """Measures every order and hands over its cells as they are done; one pool, however many studies run together.

    commons: by an order's part, what it is measured on. kind: "local", one after the other; "pool", in `processes`
    worker processes; "ray", on the cluster at `address` (one is started here without one). An order that another
    process has in hand is left for the end. Raises ValueError for another kind, RuntimeError for a worker that died
    again and again, and what measuring raises.
    """
    check_kind(kind)
    if kind == "local":
        _locally(commons, orders, begin, measured)
        return
    with _pool(commons, processes) if kind == "pool" else _ray(commons, address, processes) as (submit, workers):
        _dispatch(orders, begin, measured, submit, workers)


def check_kind(kind: str) -> None:
    """Raises ValueError for an executor that is not there."""
    if kind not in KINDS:
        raise ValueError(f"no executor {kind!r}; there are: {', '.join(KINDS)}")


def _locally(commons: Sequence[Shared], orders: Sequence[Order], begin: Begin, measured: Measured) -> None:
    with one_thread():
        for waiting in (False, True):
            left = []
            for order in orders:
                todo = begin(order, waiting)
                if todo is None:
                    left.append(order)
                else:
                    measured(order, measure(commons[order.part], order.trained.model, todo) if todo else {})
            orders = left


Submit = Callable[[Order, Sequence[str]], Any]


def _dispatch(orders: Sequence[Order], begin: Begin, measured: Measured, submit: Submit, most: int) -> None:
    """Keeps as many orders in hand as there are workers; an order of which a worker died is begun again."""
    queue: list[Order] = list(orders)
    later: list[Order] = []
    running: dict[Any, tuple[Order, Sequence[str], int]] = {}
    while queue or later or running:
        while queue and len(running) < most:
            order = queue.pop(0)
            todo = begin(order, False)
            if todo is None:
                later.append(order)
            elif not todo:
                measured(order, {})
            else:
                running[submit(order, todo)] = (order, todo, 0)
        if not running:
            for order in later:
                todo = begin(order, True)
                assert todo is not None
                if todo:
                    running[submit(order, todo)] = (order, todo, 0)
                else:
                    measured(order, {})
                break
            later = later[1:]
            continue
        for handle in _finished(list(running)):
            order, todo, tried = running.pop(handle)
            try:
                cells = _result(handle)
            except WorkerDied as error:
                if tried >= RETRIES:
                    raise RuntimeError(f"the worker of {order.label!r} died {tried + 1} times: {error}") from error
                running[submit(order, todo)] = (order, todo, tried + 1)
                continue
            measured(order, cells)


class NoRay(RuntimeError):
    """Ray was asked for and is not installed."""


class WorkerDied(RuntimeError):
    """A worker ended before its block was measured."""


def _finished(handles: list[Any]) -> Iterable[Any]:
    if isinstance(handles[0], Future):
        return wait(handles, return_when=FIRST_COMPLETED).done
    import ray

    return ray.wait(handles, num_returns=1)[0]


def _result(handle: Any) -> dict[str, Cell]:
    if isinstance(handle, Future):
        try:
            return handle.result()
        except BrokenProcessPool as error:
            raise WorkerDied(str(error)) from error
    import ray

    try:
        return ray.get(handle)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.ObjectLostError) as error:
        raise WorkerDied(str(error).splitlines()[0]) from error
    except ray.exceptions.RayTaskError as error:
        # Ray's own error is of a class made up on the spot, and its words are a traceback.
        raise (error.cause if isinstance(error.cause, Exception) else error.as_instanceof_cause()) from error


# Worker processes

_commons: Sequence[Shared] = ()


def _start(pickled: bytes) -> None:
    global _commons
    torch.set_num_threads(1)
    # Ctrl-C reaches every process of a terminal; the parent ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    _commons = pickle.loads(pickled)


def _work(part: int, model: bytes, conditions: Sequence[str]) -> dict[str, Cell]:
    return _measured(_commons[part], pickle.loads(model), conditions)


def _measured(common: Shared, model: Any, conditions: Sequence[str]) -> dict[str, Cell]:
    if hasattr(model, "inner"):
        from workbench.models.interface import register

        # What transformers calls by name is known only in a process in which `wrap` has run.
        register()
    return measure(common, model, conditions)


@contextmanager
def _pool(commons: Sequence[Shared], processes: int | None) -> Iterator[tuple[Submit, int]]:
    """A pool that is made again when one of its processes is killed."""
    pickled, pools, workers = pickle.dumps(tuple(commons)), [], processes or os.cpu_count() or 1

    def opened() -> ProcessPoolExecutor:
        pool = ProcessPoolExecutor(workers, context(), initializer=_start, initargs=(pickled,))
        pools.append(pool)
        return pool

    def submit(order: Order, conditions: Sequence[str]) -> Future:
        # Tensors by themselves would be fetched by the worker, from a thread here that complains of one that is ended.
        given = (order.part, pickle.dumps(order.trained.model), conditions)
        with unbroken(), script_left_alone(type(commons[0].task).__module__):
            try:
                return pools[-1].submit(_work, *given)
            except BrokenProcessPool:
                return opened().submit(_work, *given)

    others = set(multiprocessing.active_children())
    opened()
    try:
        yield submit, workers
    except BaseException:
        ours = set(multiprocessing.active_children()) - others
        for process in ours:
            process.terminate()
        # Waited for: one that is only starting would find what it was to share gone, and print a traceback.
        for process in ours:
            process.join(5)
        raise
    finally:
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _ray(commons: Sequence[Shared], address: str | None, processes: int | None) -> Iterator[tuple[Submit, int]]:
    """Tasks on a cluster; what all of them need, and each model, is put there once, and results come back through its
    object store."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise NoRay("the executor 'ray' needs Ray: pip install 'attention-workbench[ray]'") from error
    begun = not ray.is_initialized()
    if begun:
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    there, models = [ray.put(common) for common in commons], {}
    task = ray.remote(max_retries=RETRIES)(_on_a_node)

    def submit(order: Order, conditions: Sequence[str]) -> Any:
        model = order.trained.model
        if id(model) not in models:
            models[id(model)] = ray.put(model)
        wanted = task.options(**resources(model))
        return wanted.remote(models[id(model)], list(conditions), there[order.part])

    try:
        yield submit, processes or max(int(ray.cluster_resources().get("CPU", 1)), 1)
    finally:
        if begun:
            ray.shutdown()


def resources(model: Any) -> dict[str, int]:
    """What a block asks of a cluster: a processor, and a GPU where its model lies on one."""
    return {"num_cpus": 1, "num_gpus": int(next(model.parameters()).device.type == "cuda")}


def _on_a_node(model: Any, conditions: Sequence[str], common: Shared) -> dict[str, Cell]:
    torch.set_num_threads(1)
    return _measured(common, model, conditions)
