"""A Python that has everything imported; every command is forked from it.

A process of its own still runs each, with its own folder, environment and arguments, so that
nothing is shared but what importing made. A cold one takes seconds to import, and DVC starts one
for every stage. `python` gives the path of a program that takes `-m` and `-c` as Python does, hands
them to the warm process and ends as the command does; all else it leaves to the real Python.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path
from typing import Any

IMPORTED = """
    torch transformers accelerate sklearn.cluster scipy.optimize scipy.stats pandas pyarrow.parquet faiss pandera.pandas
    matplotlib.pyplot great_expectations dvc.cli dvc.repo dvc.commands.repro dvc.dvcfile dvc.stage.loader
    dvc_data.index mlflow.tracking mlflow.pyfunc mlflow.store.tracking.sqlalchemy_store dagster httpx rich.table
    mlflow.store.model_registry.sqlalchemy_store transformers.models.bert.modeling_bert
    orchestration.cli orchestration.definitions orchestration.jobs orchestration.sensors orchestration.instance
    orchestration.pipeline.run_stage orchestration.pipeline.repro
    orchestration.freshness.retrain orchestration.freshness.pilot orchestration.freshness.drift
    orchestration.registry.release model_code.collection.index.live_index orchestration.cli.garbage
    model_code.stages.corpus model_code.stages.acceptance model_code.stages.query_generator
    model_code.stages.pseudo_queries model_code.stages.base_index model_code.stages.hierarchy model_code.stages.train
    model_code.stages.index model_code.stages.baselines model_code.stages.evaluate model_code.stages.comparison
    model_code.stages.fuse
    model_code.stages.contract
"""
CLIENT = """\
#!{python} -IS
import array, json, os, socket, sys

if sys.argv[1:2] not in (["-m"], ["-c"]):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendmsg([b"0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    server.sendall(len(asked).to_bytes(8, "big") + asked)
    answer = server.recv(1)
sys.stdout = None
os._exit(answer[0] if answer else 70)
"""


@functools.cache
def python(hash_seed: int) -> Path:
    """The program, whose process is started at the first call and ends with this one; sets are
    ordered by the seed.
    """
    from tests.end_to_end.tiny_project import copy_code

    folder = Path(tempfile.mkdtemp(prefix="warm"))
    copy_code(folder / "code")
    program = folder / "bin" / "python"
    address = str(folder / "address")
    program.parent.mkdir()
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(0o755)
    command = [sys.executable, str(Path(__file__)), address, str(program)]
    variables = {**os.environ, "PYTHONPATH": str(folder / "code"), "PYTHONHASHSEED": str(hash_seed)}
    process = subprocess.Popen(
        command, cwd=folder / "code", env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    atexit.register(shutil.rmtree, folder)
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    assert process.stdout.readline() == b"ready\n"
    return program


def serve(address: str, program: str) -> None:
    """Fork a process for each connection, until standard input ends; a client that goes away ends
    its process.
    """
    for name in IMPORTED.split():
        importlib.import_module(name)
    sys.executable = program
    gc.collect()
    gc.freeze()
    # A fork does not copy the other threads.
    assert threading.active_count() == 1
    listener = socket.socket(socket.AF_UNIX)
    selector = selectors.DefaultSelector()
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                return
            if key.fileobj is listener:
                _begin(listener, selector)
            elif key.data[0] == "client":
                signal.pidfd_send_signal(key.data[1], signal.SIGTERM)
                selector.unregister(key.fileobj)
            else:
                _end(key, selector)


def _begin(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    client, _ = listener.accept()
    _, ancillary, _, _ = client.recvmsg(1, socket.CMSG_SPACE(12))
    streams = array.array("i", ancillary[0][2])
    stream = client.makefile("rb")
    arguments, folder, variables = json.loads(stream.read(int.from_bytes(stream.read(8), "big")))
    pid = os.fork()
    if not pid:
        selector.close()
        listener.close()
        client.detach()
        _become(arguments, folder, variables, list(streams))
    for descriptor in streams:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    selector.register(client, selectors.EVENT_READ, ("client", ended))
    selector.register(ended, selectors.EVENT_READ, ("process", pid, client))


def _end(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> None:
    _, pid, client = key.data
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    selector.unregister(key.fileobj)
    os.close(key.fd)
    if client in {key.fileobj for key in selector.get_map().values()}:
        selector.unregister(client)
        # As in a shell, a process that a signal ended has the status 128 and its number.
        status = code if code >= 0 else 128 - code
        client.sendall(bytes([status]))
    client.close()


def _become(
    arguments: list[str], folder: str, variables: dict[str, str], streams: list[int]
) -> None:
    """Run the command as a Python that was started for it would; never returns."""
    code: Any = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        random.seed()
        sys.path[0] = folder
        sys.argv = ["-c", *arguments[2:]]
        if arguments[0] == "-c":
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
        else:
            if not hasattr(sys.modules.get(arguments[1]), "__path__"):
                # imported for what it imports: it runs as `__main__`
                sys.modules.pop(arguments[1], None)
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        status = code if isinstance(code, int) else int(code is not None)
        os._exit(status)


if __name__ == "__main__":
    serve(*sys.argv[1:])
