"""Several models at once on a CPU: each in a worker process of one thread, whatever script asks for them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.fitting import Curve, fit
from workbench.models.config import Config
from workbench.recipe import Recipe
from workbench.task import Task

GUARD = "put what it does under `if __name__ == '__main__':`"


class Job(NamedTuple):
    """A model that is to be trained."""

    config: Config
    seed: int


Keep = Callable[[Job, dict[str, Tensor], Curve], None]


def refuse_inside_a_worker() -> None:
    """Raises RuntimeError where a worker imports the script that started it."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        # Training again there would wait for its own parent for ever.
        raise RuntimeError(f"this script trains when it is imported; {GUARD}")


def fit_in_processes(
    task: Task, recipe: Recipe, jobs: Sequence[Job], workers: int, keep: Keep, tick: Callable[[int], Any]
) -> None:
    """Trains the jobs, begun in their order, and keeps each when it is done. Raises what training raises, and
    RuntimeError for a worker that died."""
    made = context()
    steps = made.Queue()
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, made, initializer=_start_worker, initargs=(steps,)) as pool:
        with script_left_alone(type(task).__module__):
            running = {pool.submit(_work, task, recipe, job): job for job in jobs}
        pending = set(running)
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_EXCEPTION)
                for future in done:
                    keep(running[future], *pickle.loads(future.result()))
                _drain(steps, tick)
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise RuntimeError(
                    f"a training process ended before its model was trained: it was killed or ran out of memory, or "
                    f"the script that started it trains when it is imported: then {GUARD}"
                ) from error
            raise


def context() -> Any:
    """Worker processes are never forks of this one, whose threads a fork would lose; where it can be, their parent has
    loaded what they need."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["workbench.executors", "workbench.study", "workbench.models.bridge"])
    _start_the_server()
    return made


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C waits until this is done: a worker whose start is broken off belongs to nobody, nor does a cell that is
    taken in hand and not noted. Not to be nested."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _start_the_server() -> None:
    """Workers take what they hold back from the server, and it from here: Ctrl-C, which reaches every process of a
    terminal, would end one that only begins. One that is pressed meanwhile comes when this is done."""
    # First, since its start lets Ctrl-C through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def script_left_alone(module: str) -> Iterator[None]:
    """Workers that start in here do not import the running script, unless it is the module they need."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    if module == "__main__" or not kept:
        yield
        return
    try:
        vars(main).pop("__file__", None)
        main.__spec__ = None
        yield
    finally:
        vars(main).update(kept)


def _drain(steps: Any, tick: Callable[[int], Any]) -> None:
    while True:
        try:
            tick(steps.get_nowait())
        except queue.Empty:
            return


def end_with_parent() -> None:
    """In a worker: ends it when the process that it works for was killed. It would train on for nobody, and then wait
    for work for ever, since it holds the other end of its own queue."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


_steps: Any = None


def _start_worker(steps: Any) -> None:
    global _steps
    _steps = steps
    torch.set_num_threads(1)
    end_with_parent()


def _work(task: Task, recipe: Recipe, job: Job) -> bytes:
    """A pickled state and curve: tensors alone would be fetched from this process, which may be gone by then."""
    waiting = 0

    def tick(n: int) -> None:
        nonlocal waiting
        waiting += n
        if waiting >= 20:
            _steps.put(waiting)
            waiting = 0

    trained = fit(task, job.config, recipe, job.seed, tick)
    _steps.put(waiting)
    return pickle.dumps(trained)
