# SPDX-License-Identifier: Apache-2.0
"""Processes of this machine as the ranks of a gloo group; they live for many tests."""

import datetime
import multiprocessing
import pathlib
import sys
import tempfile
import traceback

SECONDS = 60  # the group's time limit
PATIENCE = 600  # beyond it, for processes that start, and on a machine that has much else to do


def _work(rank, size, folder, paths, seconds, pipe):
    sys.path[:0] = [path for path in paths if path not in sys.path]
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size,
                            timeout=datetime.timedelta(seconds=seconds))
    while True:
        work = pipe.recv()
        if work is None:
            break
        function, arguments = work
        try:
            pipe.send((True, function(rank, size, *arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Ranks:
    """size processes that run what they are given, all at once."""

    def __init__(self, size, seconds=SECONDS):
        self.size, self._seconds = size, seconds
        self._processes = []

    def _start(self):
        self._folder = tempfile.TemporaryDirectory()
        paths = [str(pathlib.Path(__file__).parent), *sys.path]
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        for rank in range(self.size):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(rank, self.size, self._folder.name, paths, self._seconds,
                                                          there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def results(self, function, *arguments):
        """Of each rank: (True, what function(rank, size, *arguments) returned), (False, its traceback), or (None, the
        exit status of a process that ended)."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))
        made = []
        for pipe, process in zip(self._pipes, self._processes):
            try:
                made.append(pipe.recv() if pipe.poll(PATIENCE + self._seconds) else (None, "no answer"))
            except EOFError:
                process.join(10)
                made.append((None, process.exitcode))
        return made

    def run(self, function, *arguments):
        """What each rank returned; a rank that fails ends all of them and is shown."""
        made = self.results(function, *arguments)
        if all(status for status, _ in made):
            return [value for _, value in made]
        self.stop()
        raise AssertionError("\n".join(f"rank {rank}:\n{value}" for rank, (status, value) in enumerate(made)
                                       if not status))

    def stop(self):
        for process in self._processes:
            process.terminate()
            process.join()
        self._processes = []

    def end(self):
        """As a program ends: what the processes hold is given back in order."""
        for pipe in self._pipes if self._processes else ():
            pipe.send(None)
        for process in self._processes:
            process.join(20)
        self.stop()
